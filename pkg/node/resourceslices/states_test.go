// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// TestDescribe_EveryState_HasCauseAndRemedy reads the constants of type State from the code.
func TestDescribe_EveryState_HasCauseAndRemedy(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "build.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := v.Type.(*ast.Ident); !ok || kind.Name != "State" {
			return true
		}
		literal, ok := v.Values[0].(*ast.BasicLit)
		if !ok {
			return true // Lost is a constant of pkg/gpu/health.
		}
		value, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		found++
		s, known := Describe(value)
		if !known || s.Cause == "" || s.Remedy == "" {
			t.Errorf("state %s: %+v", value, s)
		}
		if remedy := s.RemedyFor("0000:1b:00.0"); strings.Contains(remedy, "ADDRESS") {
			t.Errorf("state %s: %s", value, remedy)
		}
		for _, c := range s.Commands {
			if !strings.Contains(s.Remedy, c) {
				t.Errorf("state %s: the remedy %q lacks the command %q", value, s.Remedy, c)
			}
		}
		if len(s.Commands) == 0 && (strings.Contains(s.Remedy, "nvidia-smi") || strings.Contains(s.Remedy, "kubectl gpu un")) {
			t.Errorf("state %s: the remedy %q has a command", value, s.Remedy)
		}
		return true
	})
	if found != len(States) {
		t.Errorf("build.go has %d states, and %d are described", found, len(States))
	}
}
