//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/test/e2e/env"
)

const node = "crash-node"

// crashEnv is the plugin's environment: a machine, its state on disk, and at most one plugin.
type crashEnv struct {
	t     *testing.T
	env   *env.Env
	dir   string
	state []string
	log   *os.File

	plugin *Process
	conn   *grpc.ClientConn
	dra    drapb.DRAPluginClient
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
	e.state = []string{filepath.Join(dir, "cdi"), filepath.Join(dir, "plugins", env.Driver)}
	if e.log, err = os.Create(filepath.Join(dir, "plugin.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.crash)
	return e
}

// start starts the shipped binary and waits until it answers.
func (e *crashEnv) start() {
	e.t.Helper()
	cmd := exec.Command(filepath.Join(e.env.Tree, "bin", "dra-kubelet-plugin"), e.env.PluginArguments(e.dir, node)...)
	cmd.Stdout, cmd.Stderr = e.log, e.log
	var err error
	if e.plugin, err = Start(cmd, e.state...); err != nil {
		e.t.Fatal(err)
	}
	e.conn, err = grpc.NewClient("unix://"+filepath.Join(e.dir, "plugins", env.Driver, "dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.dra = drapb.NewDRAPluginClient(e.conn)
	ctx, cancel := context.WithTimeout(e.t.Context(), 30*time.Second)
	defer cancel()
	if _, err := e.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}, grpc.WaitForReady(true)); err != nil {
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
	_ = e.conn.Close()
	e.plugin = nil
}

func (e *crashEnv) prepare(c *drapb.Claim) error {
	ctx, cancel := context.WithTimeout(e.t.Context(), 20*time.Second)
	defer cancel()
	answer, err := e.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err == nil && answer.Claims[c.Uid].Error != "" {
		err = errors.New(answer.Claims[c.Uid].Error)
	}
	return err
}

func (e *crashEnv) unprepare(c *drapb.Claim) error {
	ctx, cancel := context.WithTimeout(e.t.Context(), 20*time.Second)
	defer cancel()
	answer, err := e.dra.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err == nil && answer.Claims[c.Uid].Error != "" {
		err = errors.New(answer.Claims[c.Uid].Error)
	}
	return err
}

// files lists the files of a claim, including temporary ones.
func (e *crashEnv) files(uid string) []string {
	var out []string
	for _, dir := range e.state {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && (strings.Contains(path, uid) || strings.HasSuffix(path, ".tmp")) {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

// TestPlugin_KilledAtEveryEffect_ServesClaimAfterRestart kills the plugin at the first, second, … system call that
// would change its state, first in Prepare, then in Unprepare, until the last call. Each time a restarted plugin must
// serve the claim and remove its files in Unprepare.
func TestPlugin_KilledAtEveryEffect_ServesClaimAfterRestart(t *testing.T) {
	e := newEnv(t)
	claims, err := e.env.AllocatedClaims(t.Context(), node+"/gpu", []string{"gpu-0000-1b-00-0"}, false)
	if err != nil {
		t.Fatal(err)
	}
	c := claims[0]
	for _, phase := range []struct {
		name          string
		before, armed func(*drapb.Claim) error
	}{
		{"prepare", func(*drapb.Claim) error { return nil }, e.prepare},
		{"unprepare", e.prepare, e.unprepare},
	} {
		points := 0
		for through := false; !through; points++ {
			e.start()
			if err := phase.before(c); err != nil {
				t.Fatal(err)
			}
			e.plugin.Arm(points)
			if err := phase.armed(c); err == nil {
				through = true
				e.plugin.Arm(1 << 30)
			} else {
				seen := e.plugin.Seen()
				e.plugin.Wait()
				e.crash()
				if len(seen) != points+1 {
					t.Fatalf("%s failed without being killed, at %v: %v", phase.name, seen, err)
				}
				t.Logf("%s: killed at %s", phase.name, seen[points])
				e.start()
			}
			if phase.name == "prepare" {
				if err := e.prepare(c); err != nil {
					t.Fatalf("prepare again after a kill at effect %d: %v", points, err)
				}
				if len(e.files(c.Uid)) != 2 {
					t.Errorf("a prepared claim has a record and a spec; there are %v", e.files(c.Uid))
				}
			}
			if err := e.unprepare(c); err != nil {
				t.Fatalf("unprepare after a kill at effect %d: %v", points, err)
			}
			if left := e.files(c.Uid); len(left) > 0 {
				t.Errorf("after a kill at effect %d of %s there is left: %v", points, phase.name, left)
			}
			e.crash()
		}
		if points < 5 {
			t.Errorf("%s has %d effects, too few to believe", phase.name, points)
		}
		t.Logf("%s: killed at each of %d effects", phase.name, points-1)
	}
}
