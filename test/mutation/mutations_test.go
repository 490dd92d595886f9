// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// TestMutations_Tree_HasEachTextOnceAndItsTest makes changes of the code update their mutations: a mutation without
// its text or test proves nothing.
func TestMutations_Tree_HasEachTextOnceAndItsTest(t *testing.T) {
	names := map[string]bool{}
	for _, m := range mutations {
		if names[m.Name] {
			t.Errorf("%q is there twice", m.Name)
		}
		names[m.Name] = true
		data, err := os.ReadFile(filepath.Join(root, m.File))
		if err != nil {
			t.Error(err)
			continue
		}
		if n := strings.Count(string(data), m.Old); n != 1 {
			t.Errorf("%q: the text to replace stands %d times in %s", m.Name, n, m.File)
		}
		name, _, _ := strings.Cut(m.Test, "/")
		if !declared(t, m.Package, "func "+name+"(") {
			t.Errorf("%q: %s has no test %s", m.Name, m.Package, name)
		}
	}
}

func declared(t *testing.T, pkg, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), text) {
			return true
		}
	}
	return false
}
