// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// labels collects the effects that the engine and its stores declare, from their source: one that is declared tomorrow
// is missed tomorrow.
func labels(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{"*.go", "../claim/record/*.go", "../cdi/store/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || file == "../claim/record/gpu.go" {
				continue // The crash matrix of partitions covers the records of GPUs.
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok {
					return true
				}
				if kind, ok := spec.Type.(*ast.SelectorExpr); !ok || kind.Sel.Name != "Label" {
					return true
				}
				for _, v := range spec.Values {
					text, err := strconv.Unquote(v.(*ast.BasicLit).Value)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, text)
				}
				return true
			})
		}
	}
	if len(out) < 10 {
		t.Fatalf("found only %v: the search is broken", out)
	}
	return out
}
