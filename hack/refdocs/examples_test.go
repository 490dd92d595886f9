// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestContributing_Examples_AreInTheTree(t *testing.T) {
	page, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	for _, block := range strings.Split(string(page), "```go\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		source := ""
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			if path, ok := strings.CutPrefix(line, "// "); ok {
				data, err := os.ReadFile(filepath.Join("../..", path))
				if err != nil {
					t.Fatal(err)
				}
				source, examples = string(data), examples+1
			} else if !strings.Contains(source, line) {
				t.Errorf("the source has no line %q", line)
			}
		}
	}
	if examples < 7 {
		t.Errorf("only %d examples name their file", examples)
	}
}
