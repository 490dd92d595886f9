//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package skew runs an earlier release's plugin and today's in turn over the same files, as an upgrade and a downgrade do.
package skew

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/testing/kubelettest"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

const (
	node = "skew-node"
	// The spaces differ between the API server's JSON and protobuf.
	longSlices = `{"apiVersion": "resource.nvidia.com/v1beta1",  "kind": "GpuConfig",
		"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}`
	limited = `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
		"sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 30}}}`
	topology = `{"kind": "GpuConfig", "apiVersion": "resource.nvidia.com/v1beta1", "topology": {"ncclTopology": true}}`
	ofMIG    = `{"kind": "MigDeviceConfig", "apiVersion": "resource.nvidia.com/v1beta1", "sharing": {"strategy": "MPS"}}`
)

// claims are prepared by one version and kept by the other; coTenants are on the same GPUs, the other way round.
var (
	claims = map[string][]env.Part{
		"whole":            {{Device: "gpu-0000-1b-00-0"}},
		"partition":        {{Device: "gpu-0000-43-00-0-mig-1g-10gb-0"}},
		"shared partition": {{Device: "gpu-0000-43-00-0-mig-2g-20gb-2", Memory: "3Gi", Parameters: ofMIG}},
		"share":            {{Device: "gpu-0000-52-00-0", Memory: "10Gi", Parameters: limited}},
		"slice":            {{Device: "gpu-0000-61-00-0", Memory: "10Gi", Parameters: longSlices}},
		"group":            {{Device: "nvlink-2-0000-9d-00-0", Parameters: topology}},
		"several":          {{Device: "gpu-0000-43-00-0-mig-1g-10gb-4"}, {Device: "gpu-0000-d1-00-0", Parameters: longSlices}},
	}
	coTenants = map[string][]env.Part{
		"whole":            {{Device: "gpu-0000-df-00-0"}},
		"partition":        {{Device: "gpu-0000-43-00-0-mig-1g-10gb-1"}},
		"shared partition": {{Device: "gpu-0000-43-00-0-mig-2g-20gb-2", Memory: "4Gi", Parameters: ofMIG}},
		"share":            {{Device: "gpu-0000-52-00-0", Memory: "20Gi", Parameters: limited}},
		"slice":            {{Device: "gpu-0000-61-00-0", Memory: "20Gi", Parameters: longSlices}},
	}
)

// machine is a node without a kubelet.
type machine struct {
	t    *testing.T
	env  *env.Env
	dir  string
	log  *os.File
	sims *engine.Engine
	mps  *mpsd.Client
	// runs counts plugins, and names their pods.
	runs int
}

func newMachine(t *testing.T, s env.Env, supervisor string) *machine {
	// A short path: a socket's path has a length limit.
	dir, err := os.MkdirTemp("", "skew")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.Root = filepath.Join(dir, "driver")
	m := &machine{t: t, env: &s, dir: dir, sims: engine.Open(s.Root, nil)}
	m.must(s.Sim(t.Context(), "up", "--profile", "hgx-h100"))
	m.must(s.PluginDirectories(dir))
	stopKubelet, err := kubelettest.ServePodResources(dir)
	m.must(err)
	t.Cleanup(stopKubelet)
	m.log, err = os.Create(filepath.Join(dir, "plugin.log"))
	m.must(err)
	t.Cleanup(func() {
		if text, err := os.ReadFile(m.log.Name()); t.Failed() && err == nil {
			t.Logf("logs:\n%s", text)
		}
	})
	client, stop, err := s.StartSupervisor(filepath.Join(supervisor, "mps-supervisor"), m.mpsDir(), m.log)
	m.must(err)
	t.Cleanup(stop)
	m.mps = client
	m.must(s.Eventually(t.Context(), "the supervisor answers", 30*time.Second, func(ctx context.Context) (bool, string) {
		_, err := client.List(ctx, "")
		return err == nil, fmt.Sprint(err)
	}))
	return m
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) mpsDir() string { return filepath.Join(m.dir, "mps") }

// plugin is a running plugin.
type plugin struct {
	*env.Kubelet
	m     *machine
	ended chan error
	cmd   *exec.Cmd
}

// start starts a plugin, beside the one that it replaces.
func (m *machine) start(programs string) *plugin {
	m.t.Helper()
	m.runs++
	pod := fmt.Sprintf("run-%d", m.runs)
	cmd := exec.Command(filepath.Join(programs, "dra-kubelet-plugin"),
		append(m.env.PluginArguments(m.dir, node), "--mps-dir="+m.mpsDir(), "--pod-uid="+pod)...)
	cmd.Stdout, cmd.Stderr = m.log, m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &plugin{m: m, cmd: cmd, ended: make(chan error, 1)}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // The signal comes when the thread that started the process ends.
		started <- cmd.Start()
		p.ended <- cmd.Wait()
	}()
	m.must(<-started)
	m.t.Cleanup(func() { _ = cmd.Process.Kill() })
	kubelet, err := env.Dial(m.t.Context(), filepath.Join(m.dir, "plugins", env.Driver, "dra-"+pod+".sock"))
	m.must(err)
	p.Kubelet = kubelet
	return p
}

// stop ends a plugin as the kubelet does.
func (p *plugin) stop() {
	p.m.t.Helper()
	_ = p.Close()
	p.m.must(p.cmd.Process.Signal(syscall.SIGTERM))
	p.m.must(<-p.ended)
}

// prepared are the devices of claims, by name.
type prepared map[string][]*drapb.Device

func (p *plugin) prepare(all map[string]*drapb.Claim) prepared {
	p.m.t.Helper()
	out := prepared{}
	for name, c := range all {
		devices, err := p.Prepare(p.m.t.Context(), c)
		if err != nil || len(devices) == 0 {
			p.m.t.Fatalf("%s: %d devices, %v", name, len(devices), err)
		}
		out[name] = devices
	}
	return out
}

func (p *plugin) unprepare(all map[string]*drapb.Claim) {
	p.m.t.Helper()
	for name, c := range all {
		if err := p.Unprepare(p.m.t.Context(), c); err != nil {
			p.m.t.Errorf("unprepare %s: %v", name, err)
		}
	}
}

// allocate creates allocated claims.
func (m *machine) allocate(all map[string][]env.Part) map[string]*drapb.Claim {
	m.t.Helper()
	out := map[string]*drapb.Claim{}
	for name, parts := range all {
		c, err := m.env.AllocatedClaim(m.t.Context(), node+"/gpu", parts...)
		m.must(err)
		out[name] = c
	}
	return out
}

// used is everything of the node that containers use.
type used struct {
	GPUs    []string
	Daemons []string
	// Files are the records and the files that containers mount.
	Files map[string]string
}

func (m *machine) used() used {
	m.t.Helper()
	now, err := m.sims.State()
	m.must(err)
	daemons, err := m.mps.List(m.t.Context(), "")
	m.must(err)
	out := used{Files: map[string]string{}}
	for _, g := range now.GPUs {
		out.GPUs = append(out.GPUs, fmt.Sprintf("%s: %v, compute mode %d, time slice %d", g.Address, g.Instances, g.ComputeMode, g.TimeSlice))
	}
	for _, d := range daemons.Daemons {
		out.Daemons = append(out.Daemons, fmt.Sprintf("%s of %s, since %s", d.Name, d.UUID, d.Since))
	}
	state := filepath.Join(m.dir, "plugins", env.Driver, "state")
	for _, dir := range []string{filepath.Join(state, "records"), filepath.Join(state, "mounted")} {
		m.must(filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			out.Files[strings.TrimPrefix(path, state)] = string(data)
			return err
		}))
	}
	return out
}

// keeps prepares claims again and fails the test if that changes anything for their containers.
func (p *plugin) keeps(all map[string]*drapb.Claim, want prepared) {
	p.m.t.Helper()
	before := p.m.used()
	got := p.prepare(all)
	if d := cmp.Diff(want, got, protocmp.Transform()) + cmp.Diff(before, p.m.used()); d != "" {
		p.m.t.Errorf("prepared again by another version, claims changed (-before +after):\n%s", d)
	}
}

func TestMain(m *testing.M) { boxtest.Main(m) }

func TestMain_Killed_LeavesNothing(t *testing.T) {
	boxtest.CheckKilled(t, func() {
		s, err := env.FromEnvironment(os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		today := filepath.Join(s.Tree, "bin")
		m := newMachine(t, *s, today)
		m.start(today).prepare(m.allocate(map[string][]env.Part{"share": claims["share"]}))
	})
}

// TestClaims_PluginUpAndDown_KeptAndReleased prepares claims with one version, and others of the same GPUs with the other
// version. Each version must keep and release the claims of the other, with the supervisor of the first.
func TestClaims_PluginUpAndDown_KeptAndReleased(t *testing.T) {
	s, err := env.FromEnvironment(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	before, err := s.EarlierPrograms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	today := filepath.Join(s.Tree, "bin")
	for name, c := range map[string]struct{ first, second string }{
		"earlier, today, earlier, today": {before, today},
		"today, earlier, today, earlier": {today, before},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, *s, c.first)
			empty := m.used()
			all, others := m.allocate(claims), m.allocate(coTenants)

			first := m.start(c.first)
			devices := first.prepare(all)
			second := m.start(c.second) // Both run for a while.
			second.keeps(all, devices)
			otherDevices := second.prepare(others)
			first.keeps(all, devices)
			first.stop()
			second.keeps(others, otherDevices)

			first = m.start(c.first)
			second.stop()
			first.keeps(all, devices)
			first.keeps(others, otherDevices)
			first.unprepare(others)

			second = m.start(c.second)
			first.stop()
			second.keeps(all, devices)
			second.unprepare(all)
			m.must(m.env.Eventually(t.Context(), "files, partitions, daemons and settings gone", 90*time.Second, func(context.Context) (bool, string) {
				left := cmp.Diff(empty, m.used())
				return left == "", left
			}))
			second.stop()
		})
	}
}
