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

// world is a machine, its state on disk, and at most one plugin.
type world struct {
	t     *testing.T
	stage *env.Stage
	dir   string
	state []string
	log   *os.File

	plugin *Process
	conn   *grpc.ClientConn
	dra    drapb.DRAPluginClient
}

func newWorld(t *testing.T) *world {
	s, err := env.FromEnvironment(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	// A short path of its own: sockets have little room for one.
	dir, err := os.MkdirTemp("", "crash")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.Root = filepath.Join(dir, "driver")
	w := &world{t: t, stage: s, dir: dir}
	if err := errors.Join(s.Sim(t.Context(), "up", "--profile", "hgx-h100"), s.PluginDirectories(dir)); err != nil {
		t.Fatal(err)
	}
	w.state = []string{filepath.Join(dir, "cdi"), filepath.Join(dir, "plugins", env.Driver)}
	if w.log, err = os.Create(filepath.Join(dir, "plugin.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.end)
	return w
}

// begin starts the shipped binary and waits until it answers.
func (w *world) begin() {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(w.stage.Tree, "bin", "dra-kubelet-plugin"), w.stage.PluginArguments(w.dir, node)...)
	cmd.Stdout, cmd.Stderr = w.log, w.log
	var err error
	if w.plugin, err = Start(cmd, w.state...); err != nil {
		w.t.Fatal(err)
	}
	w.conn, err = grpc.NewClient("unix://"+filepath.Join(w.dir, "plugins", env.Driver, "dra.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.dra = drapb.NewDRAPluginClient(w.conn)
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	if _, err := w.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}, grpc.WaitForReady(true)); err != nil {
		text, _ := os.ReadFile(w.log.Name())
		w.t.Fatalf("the plugin does not answer: %v\n%s", err, text)
	}
}

func (w *world) end() {
	if w.plugin == nil {
		return
	}
	w.plugin.Kill()
	w.plugin.Wait()
	_ = w.conn.Close()
	w.plugin = nil
}

func (w *world) prepare(c *drapb.Claim) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	answer, err := w.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err == nil && answer.Claims[c.Uid].Error != "" {
		err = errors.New(answer.Claims[c.Uid].Error)
	}
	return err
}

func (w *world) unprepare(c *drapb.Claim) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	answer, err := w.dra.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err == nil && answer.Claims[c.Uid].Error != "" {
		err = errors.New(answer.Claims[c.Uid].Error)
	}
	return err
}

// left lists the files of a claim, temporary ones included.
func (w *world) left(uid string) []string {
	var out []string
	for _, dir := range w.state {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() && (strings.Contains(path, uid) || strings.HasSuffix(path, ".tmp")) {
				out = append(out, path)
			}
			return nil
		})
	}
	return out
}

// TestSIGKILLAtEveryEffect kills the plugin at the first, second, … call that would change its state, first in Prepare,
// then in Unprepare, until a call gets through; each time a restart must serve the claim and leave nothing of it after.
func TestSIGKILLAtEveryEffect(t *testing.T) {
	w := newWorld(t)
	claims, err := w.stage.AllocatedClaims(t.Context(), node+"/gpu", []string{"gpu-0000-1b-00-0"}, false)
	if err != nil {
		t.Fatal(err)
	}
	c := claims[0]
	for _, phase := range []struct {
		name          string
		before, armed func(*drapb.Claim) error
	}{
		{"prepare", func(*drapb.Claim) error { return nil }, w.prepare},
		{"unprepare", w.prepare, w.unprepare},
	} {
		points := 0
		for through := false; !through; points++ {
			w.begin()
			if err := phase.before(c); err != nil {
				t.Fatal(err)
			}
			w.plugin.Arm(points)
			if err := phase.armed(c); err == nil {
				through = true
				w.plugin.Arm(1 << 30)
			} else {
				seen := w.plugin.Seen()
				w.plugin.Wait()
				w.end()
				if len(seen) != points+1 {
					t.Fatalf("%s failed without being killed, at %v: %v", phase.name, seen, err)
				}
				t.Logf("%s: killed at %s", phase.name, seen[points])
				w.begin()
			}
			if phase.name == "prepare" {
				if err := w.prepare(c); err != nil {
					t.Fatalf("prepare again after a kill at effect %d: %v", points, err)
				}
				if len(w.left(c.Uid)) != 2 {
					t.Errorf("a prepared claim has a record and a spec; there are %v", w.left(c.Uid))
				}
			}
			if err := w.unprepare(c); err != nil {
				t.Fatalf("unprepare after a kill at effect %d: %v", points, err)
			}
			if left := w.left(c.Uid); len(left) > 0 {
				t.Errorf("after a kill at effect %d of %s there is left: %v", points, phase.name, left)
			}
			w.end()
		}
		if points < 5 {
			t.Errorf("%s has %d effects, too few to believe", phase.name, points)
		}
		t.Logf("%s: killed at each of %d effects", phase.name, points-1)
	}
}
