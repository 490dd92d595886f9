// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package allocators

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// scheduled are the versions whose schedulers the test reads. The end-to-end tests run them too.
var scheduled = map[int]string{34: "v1.34.12", 35: "v1.35.8", 36: "v1.36.5", 37: "v1.37.2"}

// withFields are features with fields of their own, which a server without the feature drops.
var withFields = []string{"AdminAccess", "ConsumableCapacity", "DeviceBindingAndStatus", "DeviceTaints", "PartitionableDevices", "PrioritizedList"}

// TestFeatures_EverySupportedVersion_AsTheScheduler reads the scheduler's own list, and which of its features are on by
// default, in its source.
func TestFeatures_EverySupportedVersion_AsTheScheduler(t *testing.T) {
	for _, m := range minors {
		source := kubernetes(t, scheduled[m.version])
		on := allocatorFeatures(t, source, m.version)
		if len(on) < 2 {
			t.Errorf("1.%d: %v are on by default, which is less than any version has", m.version, on)
		}
		features := reflect.ValueOf(ask.Features(schedulerfault.Version{Minor: m.version, Patch: 1}))
		for i := range features.NumField() {
			name := features.Type().Field(i).Name
			if ours, theirs := features.Field(i).Bool(), on[name]; ours != theirs && !(ours && slices.Contains(withFields, name)) {
				t.Errorf("1.%d: %s is %v, and in the scheduler %v", m.version, name, ours, theirs)
			}
			delete(on, name)
		}
		// 1.34 names the two parts of a feature.
		for name := range on {
			if name != "DeviceBinding" && name != "DeviceStatus" {
				t.Errorf("1.%d: the scheduler's allocator has %s, which is unknown", m.version, name)
			}
		}
	}
	if newest := slices.MaxFunc(minors, func(a, b minor) int { return a.version - b.version }).version; ask.Features(schedulerfault.Version{}) !=
		ask.Features(schedulerfault.Version{Minor: newest}) {
		t.Error("an unknown version has not the features of the newest")
	}
}

// kubernetes returns the directory of a version's source.
func kubernetes(t *testing.T, version string) string {
	t.Helper()
	var info struct{ Dir string }
	if err := json.Unmarshal(goCommand(t, t.TempDir(), "mod", "download", "-json", "k8s.io/kubernetes@"+version), &info); err != nil {
		t.Fatal(err)
	}
	return info.Dir
}

// files parses the Go files of a directory of the source, except tests.
func files(t *testing.T, parts ...string) (out []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(append(parts, "*.go")...))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// allocatorFeatures returns whether each feature that the scheduler gives its allocator is on by default.
func allocatorFeatures(t *testing.T, source string, minor int) map[string]bool {
	t.Helper()
	defaults, enabled, out := map[string]bool{}, map[string]string{}, map[string]bool{}
	for _, f := range files(t, source, "pkg", "features") {
		ast.Inspect(f, func(n ast.Node) bool {
			gate, specs := pair(n)
			for _, spec := range specs {
				version, on := defaultOf(t, spec)
				if version >= 0 && version <= minor {
					defaults[gate] = on
				}
			}
			return true
		})
	}
	for _, f := range files(t, source, "pkg", "scheduler", "framework", "plugins", "feature") {
		ast.Inspect(f, func(n ast.Node) bool {
			kv, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			if call, ok := kv.Value.(*ast.CallExpr); ok && len(call.Args) == 1 {
				if gate, ok := call.Args[0].(*ast.SelectorExpr); ok {
					enabled[text(kv.Key)] = gate.Sel.Name
				}
			}
			return true
		})
	}
	for _, f := range files(t, source, "pkg", "scheduler", "framework", "plugins", "dynamicresources") {
		ast.Inspect(f, func(n ast.Node) bool {
			list, ok := n.(*ast.CompositeLit)
			if !ok || text(list.Type) != "structured.Features" {
				return true
			}
			for _, e := range list.Elts {
				kv := e.(*ast.KeyValueExpr)
				on := true
				ast.Inspect(kv.Value, func(n ast.Node) bool {
					s, ok := n.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					gate := enabled[s.Sel.Name]
					for _, prefix := range []string{"Enable", "EnableDRA", "EnableDRAResourceClaim"} { // 1.34: enableAdminAccess.
						gate = cmp.Or(gate, enabled[prefix+strings.TrimPrefix(s.Sel.Name, "enable")])
					}
					value, known := defaults[gate]
					if !known {
						t.Errorf("%s: the gate of %s (%s) is unknown", source, text(kv.Key), s.Sel.Name)
					}
					on = on && value
					return false
				})
				out[text(kv.Key)] = on
			}
			return true
		})
	}
	return out
}

// pair returns a feature gate and its specifications by version, of a table of them.
func pair(n ast.Node) (gate string, specs []ast.Expr) {
	kv, ok := n.(*ast.KeyValueExpr)
	if !ok {
		return "", nil
	}
	list, ok := kv.Value.(*ast.CompositeLit)
	if !ok || list.Type != nil {
		return "", nil
	}
	return text(kv.Key), list.Elts
}

// defaultOf returns the minor version and the default of a specification. The version is negative for other expressions.
func defaultOf(t *testing.T, e ast.Expr) (version int, on bool) {
	t.Helper()
	version = -1
	list, ok := e.(*ast.CompositeLit)
	if !ok {
		return version, false
	}
	for _, e := range list.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			return -1, false
		}
		switch text(kv.Key) {
		case "Version":
			if call, ok := kv.Value.(*ast.CallExpr); ok && len(call.Args) == 1 {
				if literal, ok := call.Args[0].(*ast.BasicLit); ok {
					minor, err := strconv.Atoi(strings.TrimPrefix(strings.Trim(literal.Value, `"`), "1."))
					if err != nil {
						t.Fatal(err)
					}
					version = minor
				}
			}
		case "Default":
			on = text(kv.Value) == "true"
		}
	}
	return version, on
}

// text returns an identifier or a selector as it is written.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return fmt.Sprintf("%s.%s", text(e.X), e.Sel.Name)
	}
	return ""
}
