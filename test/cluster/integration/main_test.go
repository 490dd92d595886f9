// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration runs the onenode command as its users do. It needs root and, the first time, some ten minutes
// to build Kubernetes.
package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/test/cluster/internal/image"
)

// programs are built once for all tests.
var programs struct{ onenode, kubectl, archive string }

const probeImage = "onenode.invalid/probe:v1"

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "onenode-test-")
		if err == nil {
			defer os.RemoveAll(dir)
			err = buildPrograms(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

func buildPrograms(dir string) error {
	probe := filepath.Join(dir, "probe")
	programs.onenode = filepath.Join(dir, "onenode")
	for out, pkg := range map[string]string{programs.onenode: "../cmd/onenode", probe: "./testdata/probe"} {
		cmd := exec.Command("go", "build", "-o", out, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", pkg, err, b)
		}
	}
	programs.archive = filepath.Join(dir, "probe.tar")
	if err := image.Write(programs.archive, probeImage, probe, "probe"); err != nil {
		return err
	}
	build := exec.Command(programs.onenode, "build")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("onenode build: %w", err)
	}
	b, err := exec.Command(programs.onenode, "which", "kubectl").Output()
	programs.kubectl = strings.TrimSpace(string(b))
	return err
}

// cluster is a cluster under test.
type cluster struct {
	t   *testing.T
	dir string
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{t, filepath.Join(t.TempDir(), "cluster")}
	t.Cleanup(func() {
		if _, err := os.Stat(c.dir); err == nil {
			exec.Command(programs.onenode, "down", "--dir", c.dir).Run()
		}
	})
	return c
}

// try runs a command of onenode and returns its output and error output together.
func (c cluster) try(verb string, args ...string) (string, error) {
	return output(exec.Command(programs.onenode, append([]string{verb, "--dir", c.dir}, args...)...))
}

func (c cluster) must(verb string, args ...string) string {
	c.t.Helper()
	out, err := c.try(verb, args...)
	if err != nil {
		c.t.Fatalf("onenode %s %v: %v\n%s", verb, args, err, out)
	}
	return out
}

func (c cluster) kubectl(stdin string, args ...string) (string, error) {
	cmd := exec.Command(programs.kubectl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(c.dir, "kubeconfig"))
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

func (c cluster) mustKubectl(stdin string, args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(stdin, args...)
	if err != nil {
		c.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

func output(cmd *exec.Cmd) (string, error) {
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err := cmd.Run()
	return b.String(), err
}

// eventually polls until try returns an empty string; otherwise the last string fails the test.
func eventually(t *testing.T, within time.Duration, try func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		complaint := try()
		if complaint == "" {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("after %v: %s", within, complaint)
		}
	}
}
