//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/testing/kubelettest"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

const node = "crash-node"

const longSlices = `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
	"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`

// crashEnv is the plugin's environment: a machine, its state on disk, a supervisor of MPS daemons, and at most one
// plugin.
type crashEnv struct {
	t   *testing.T
	env *env.Env
	dir string
	// requests is the number of requests of the claim.
	requests int
	log      *os.File
	mps      *mpsd.Client
	sims     *engine.Engine

	plugin  *Process
	kubelet *env.Kubelet
}

func newEnv(t *testing.T) *crashEnv {
	s, err := env.FromEnvironment(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	// A short path: a socket's path has a length limit.
	dir, err := os.MkdirTemp("", "crash")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.Root = filepath.Join(dir, "driver")
	e := &crashEnv{t: t, env: s, dir: dir}
	if err := errors.Join(s.Sim(t.Context(), "up", "--profile", "hgx-h100"), s.PluginDirectories(dir)); err != nil {
		t.Fatal(err)
	}
	stop, err := kubelettest.ServePodResources(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	e.sims = engine.Open(s.Root, nil)
	if e.log, err = os.Create(filepath.Join(dir, "plugin.log")); err != nil {
		t.Fatal(err)
	}
	e.startSupervisor()
	t.Cleanup(e.crash)
	return e
}

func (e *crashEnv) startSupervisor() {
	client, stop, err := e.env.StartSupervisor(filepath.Join(e.env.Tree, "bin", "mps-supervisor"), e.mpsDir(), e.log)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(stop)
	e.mps = client
}

func (e *crashEnv) mpsDir() string { return filepath.Join(e.dir, "mps") }

// stateDirs are the plugin's directories.
func (e *crashEnv) stateDirs() []string {
	return []string{filepath.Join(e.dir, "cdi"), filepath.Join(e.dir, "plugins", env.Driver)}
}

// start starts the shipped binary and waits until it answers.
func (e *crashEnv) start() {
	e.t.Helper()
	cmd := exec.Command(filepath.Join(e.env.Tree, "bin", "dra-kubelet-plugin"),
		append(e.env.PluginArguments(e.dir, node), "--mps-dir="+e.mpsDir())...)
	cmd.Stdout, cmd.Stderr = e.log, e.log
	// A rename of the simulated machine's state is one effect on a GPU: the kernel driver does each call whole or not at
	// all.
	watched := append(e.stateDirs(), filepath.Join(e.env.Root, engine.Dir, "state.json"))
	var err error
	if e.plugin, err = Start(cmd, watched...); err != nil {
		e.t.Fatal(err)
	}
	if e.kubelet, err = env.Dial(e.t.Context(), filepath.Join(e.dir, "plugins", env.Driver, "dra.sock")); err != nil {
		text, _ := os.ReadFile(e.log.Name())
		e.t.Fatalf("the plugin does not answer: %v\n%s", err, text)
	}
}

func (e *crashEnv) crash() {
	if e.plugin == nil {
		return
	}
	e.plugin.Kill()
	e.plugin.Wait()
	_ = e.kubelet.Close()
	e.plugin = nil
}

func (e *crashEnv) prepare(c *drapb.Claim) error {
	_, err := e.kubelet.Prepare(e.t.Context(), c)
	return err
}

func (e *crashEnv) unprepare(c *drapb.Claim) error { return e.kubelet.Unprepare(e.t.Context(), c) }

// files lists the files whose path has a text.
func (e *crashEnv) files(text string) []string {
	var out []string
	for _, dir := range e.stateDirs() {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.Contains(path, text) {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

// effects lists what claims have on GPUs that no claim has.
func (e *crashEnv) effects() []string {
	machine, err := e.sims.State()
	if err != nil {
		e.t.Fatal(err)
	}
	daemons, err := e.mps.List(e.t.Context(), "")
	if err != nil {
		e.t.Fatal(err)
	}
	var out []string
	for _, g := range machine.GPUs {
		if len(g.Instances) > 0 {
			out = append(out, fmt.Sprintf("%d partitions of GPU %s", len(g.Instances), g.Address))
		}
	}
	for _, d := range daemons.Daemons {
		out = append(out, "MPS daemon "+d.Name)
	}
	return out
}

// TestPlugin_KilledAtEveryEffect_ServesClaimAfterRestart kills the plugin at the first, second, … system call that
// would change its state or the GPUs', first in Prepare, then in Unprepare, until the last call. Each time a restarted
// plugin must serve the claim and remove its files in Unprepare.
func TestPlugin_KilledAtEveryEffect_ServesClaimAfterRestart(t *testing.T) {
	for _, claim := range []struct {
		name  string
		parts []env.Part
	}{
		{"whole", []env.Part{{Device: "gpu-0000-1b-00-0"}}},
		{"cut, shared, sliced and linked", []env.Part{
			{Device: "gpu-0000-1b-00-0-mig-1g-10gb-0"},
			{Device: "gpu-0000-43-00-0", Memory: "10Gi"},
			{Device: "gpu-0000-52-00-0", Parameters: longSlices},
			{Device: "nvlink-2-0000-9d-00-0"},
		}},
	} {
		t.Run(claim.name, func(t *testing.T) {
			e := newEnv(t)
			c, err := e.env.AllocatedClaim(t.Context(), node+"/gpu", claim.parts...)
			if err != nil {
				t.Fatal(err)
			}
			e.requests = len(claim.parts)
			e.killAtEach(c, "prepare", func() {}, func() error { return e.prepare(c) })
			e.killAtEach(c, "unprepare", func() {
				if err := e.prepare(c); err != nil {
					e.t.Fatal(err)
				}
			}, func() error { return e.unprepare(c) })
			e.settingsRestored()
		})
	}
}

// settingsRestored waits until all GPUs have their own compute mode and time slice again, which is not Unprepare's task.
func (e *crashEnv) settingsRestored() {
	e.t.Helper()
	var changed []string
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		machine, err := e.sims.State()
		if err != nil {
			e.t.Fatal(err)
		}
		changed = nil
		for _, g := range machine.GPUs {
			if g.ComputeMode != 0 || g.TimeSlice != 0 {
				changed = append(changed, fmt.Sprintf("%s: compute mode %d, time slice %d", g.Address, g.ComputeMode, g.TimeSlice))
			}
		}
		if len(changed) == 0 {
			return
		}
	}
	e.t.Errorf("settings of GPUs without claims: %v", changed)
}

// killAtEach kills the plugin at each effect of a call, each time after before, until the call succeeds.
func (e *crashEnv) killAtEach(c *drapb.Claim, phase string, before func(), call func() error) {
	e.t.Helper()
	points := 0
	for through := false; !through; points++ {
		if e.plugin == nil {
			e.start()
		}
		before()
		e.plugin.Arm(points)
		err := call()
		// Background work that the call began can be killed after its success.
		killed := e.plugin.Disarm()
		through = err == nil && !killed
		if seen := e.plugin.Seen(); err != nil && !killed {
			e.t.Fatalf("%s failed without being killed, at %v: %v", phase, seen, err)
		} else if killed {
			e.crash()
			e.t.Logf("%s: killed at %s", phase, seen[points])
			e.start()
		}
		if phase == "prepare" {
			if err := e.prepare(c); err != nil {
				e.t.Fatalf("prepare again after a kill at effect %d: %v", points, err)
			}
			if files := e.files(c.Uid); len(files) != 2+e.requests {
				e.t.Errorf("a prepared claim has a record, a spec and the metadata of %d requests; there are %v", e.requests, files)
			}
		}
		if err := e.unprepare(c); err != nil {
			e.t.Fatalf("unprepare after a kill at effect %d: %v", points, err)
		}
		if left := append(e.files(c.Uid), e.effects()...); len(left) > 0 {
			e.t.Errorf("after a kill at effect %d of %s there is left: %v", points, phase, left)
		}
		// The plugin writes files of its own meanwhile.
		what := fmt.Sprintf("no temporary file after a kill at effect %d of %s", points, phase)
		if err := e.env.Eventually(e.t.Context(), what, 10*time.Second, func(context.Context) (bool, string) {
			left := e.files(".tmp")
			return len(left) == 0, fmt.Sprint(left)
		}); err != nil {
			e.t.Error(err)
		}
	}
	if points < 5 {
		e.t.Errorf("%s has %d effects, too few to believe", phase, points)
	}
	e.t.Logf("%s: killed at each of %d effects", phase, points-1)
}
