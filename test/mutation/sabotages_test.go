// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Code that changes takes its sabotages along: one that fits nowhere proves nothing.
func TestEverySabotageFits(t *testing.T) {
	names := map[string]bool{}
	for _, s := range sabotages {
		if names[s.Name] {
			t.Errorf("%q is there twice", s.Name)
		}
		names[s.Name] = true
		data, err := os.ReadFile(filepath.Join("../..", s.File))
		if err != nil {
			t.Error(err)
			continue
		}
		if n := strings.Count(string(data), s.Old); n != 1 {
			t.Errorf("%q: what it replaces is %d times in %s", s.Name, n, s.File)
		}
	}
}
