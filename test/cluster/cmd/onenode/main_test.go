// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/test/cluster/internal/recipe"
	"gpu-dra-driver/test/cluster/internal/spec"
)

func TestParse_FlagsAroundArguments_TakenUpToDashes(t *testing.T) {
	t.Setenv("ONENODE_DIR", "")
	for _, tt := range []struct {
		name string
		args []string
		dir  string
		rest []string
	}{
		{"flag first", []string{"--dir", "d", "kubelet"}, "d", []string{"kubelet"}},
		{"flag last", []string{"kubelet", "--dir", "d"}, "d", []string{"kubelet"}},
		{"a command keeps its own flags", []string{"--dir=d", "--", "ls", "--dir", "x"}, "d", []string{"ls", "--dir", "x"}},
		{"an argument before the dashes", []string{"a", "--dir", "d", "--", "--b"}, "d", []string{"a", "--b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFlags("test", streams{err: os.Stderr}).withDir()
			rest, err := f.parse(tt.args)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.rest, rest); diff != "" || f.dir != tt.dir {
				t.Errorf("dir %q, rest (-want +got)\n%s", f.dir, diff)
			}
		})
	}
	if _, err := newFlags("test", streams{err: os.Stderr}).withDir().parse([]string{"kubelet"}); err == nil {
		t.Error("no directory was accepted")
	}
}

func TestPairs_Malformed_Refused(t *testing.T) {
	for _, bad := range []string{"A", "A=", "A=1", "=true", "A=true,", "A=true --x"} {
		if got, err := pairs("--feature-gates", bad); err == nil {
			t.Errorf("%q was accepted as %q", bad, got)
		}
	}
	if got, err := pairs("", "A=true,b/v1=false"); err != nil || len(got) != 2 {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestNewSpec_NodeCount_Bounded(t *testing.T) {
	for nodes, want := range map[int]bool{-1: false, 0: false, 1: true, spec.MaxNodes: true, spec.MaxNodes + 1: false} {
		if _, err := newSpec("d", upOptions{kubernetes: recipe.DefaultKubernetes, nodes: nodes}); (err == nil) != want {
			t.Errorf("--nodes %d: %v", nodes, err)
		}
	}
}

func TestClaim_DirectoryHasOtherFiles_Refused(t *testing.T) {
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := claim(foreign); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("a directory with other things in it: %v", err)
	}
	if err := os.WriteFile(filepath.Join(foreign, "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := claim(foreign); err == nil {
		t.Error("a directory of another program that also keeps a lock was accepted")
	}
	logs := t.TempDir()
	if err := os.Mkdir(filepath.Join(logs, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := claim(logs)
	if err != nil {
		t.Fatalf("a directory with kept logs: %v", err)
	}
	defer lock.Close()
	if _, err := claim(logs); !errors.Is(err, spec.ErrUp) {
		t.Errorf("a directory in use: %v", err)
	}
}

func TestClaim_Leftover_OnlyItIsReplaced(t *testing.T) {
	elsewhere, dir := t.TempDir(), t.TempDir()
	left := spec.Spec{ID: "test-leftover", Dir: dir}
	if err := left.Save(); err != nil {
		t.Fatal(err)
	}
	// A copy of another cluster's file must not cause that cluster's removal.
	b, err := os.ReadFile(left.Path(spec.File))
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.ReplaceAll(string(b), dir, elsewhere)
	if err := os.WriteFile(left.Path(spec.File), []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("the cleaning went elsewhere: %v", err)
	}
	if _, err := os.Stat(left.Path(spec.File)); err == nil {
		t.Error("the leftover is still there")
	}
}
