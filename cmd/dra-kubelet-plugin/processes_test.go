// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestInNodesPIDNamespace_OtherNamespace_False(t *testing.T) {
	proc := func(process, namespace string) string {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, process, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(namespace, filepath.Join(dir, process, "ns/pid")); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	own := proc("self", "pid:[1]")
	for want, node := range map[bool]string{true: proc("1", "pid:[1]"), false: proc("1", "pid:[2]")} {
		if got := inNodesPIDNamespace(own, node); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if !inNodesPIDNamespace(own, t.TempDir()) {
		t.Error("simulated hardware is in another namespace")
	}
}
