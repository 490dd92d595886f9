// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package exits tests docs/design/exits.md: the features that end one day, and what goes with each.
package exits

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	controllerflags "gpu-dra-driver/cmd/dra-controller/flags"
	pluginflags "gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
)

const (
	root  = "../.."
	chart = root + "/deployments/helm/gpu-dra-driver"
)

// parts are the rows of each feature.
var parts = []string{"ends when", "build tag", "left out", "wired in", "stays", "docs", "flags", "chart values", "templates", "end-to-end cases"}

// feature has the names of each part.
type feature map[string][]string

var (
	row  = regexp.MustCompile(`(?m)^\| ([a-z ]*?) ?\| ([a-z -]+) \| (.+) \|$`)
	name = regexp.MustCompile("`([^`]+)`")
)

// table reads the features of the page.
func table(t *testing.T) map[string]feature {
	t.Helper()
	text, err := os.ReadFile(root + "/docs/design/exits.md")
	if err != nil {
		t.Fatal(err)
	}
	out, last := map[string]feature{}, ""
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "feature" {
			continue
		}
		if m[1] != "" {
			last = m[1]
			out[last] = feature{}
		}
		out[last][m[2]] = []string{}
		for _, n := range name.FindAllStringSubmatch(m[3], -1) {
			out[last][m[2]] = append(out[last][m[2]], n[1])
		}
	}
	if len(out) != 5 {
		t.Fatalf("%d features, want 5", len(out))
	}
	return out
}

func TestTable_EachName_Exists(t *testing.T) {
	values := map[string]any{}
	text, err := os.ReadFile(chart + "/values.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &values)
	}
	if err != nil {
		t.Fatal(err)
	}
	flags := []*pflag.FlagSet{controllerflags.New(new(controllerflags.Config)), pluginflags.New(new(pluginflags.Config))}
	tests := testNames(t)
	file := func(dir string) func(string) bool {
		return func(name string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		}
	}
	exists := map[string]func(string) bool{
		"left out": file(root), "wired in": file(root), "docs": file(root), "templates": file(chart + "/templates"),
		"flags": func(name string) bool {
			return slices.ContainsFunc(flags, func(f *pflag.FlagSet) bool { return f.Lookup(strings.TrimPrefix(name, "--")) != nil })
		},
		"chart values": func(name string) bool {
			var at any = values
			for part := range strings.SplitSeq(name, ".") {
				of, _ := at.(map[string]any)
				if at = of[part]; at == nil {
					return false
				}
			}
			return true
		},
		"end-to-end cases": func(name string) bool { return tests[name] },
	}
	for name, f := range table(t) {
		for part := range f {
			if !slices.Contains(parts, part) {
				t.Errorf("%s: %q is not a part", name, part)
			}
		}
		for _, part := range parts {
			if f[part] == nil {
				t.Errorf("%s: the row %q is missing", name, part)
			}
			known := exists[part]
			if known == nil {
				continue
			}
			if len(f[part]) == 0 {
				t.Errorf("%s: %s has no names", name, part)
			}
			for _, one := range f[part] {
				if !known(one) {
					t.Errorf("%s: %s: %s does not exist", name, part, one)
				}
			}
		}
	}
}

// testNames returns the tests of the module test.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	declares, out := regexp.MustCompile(`(?m)^func (Test\w+)\(`), map[string]bool{}
	err := filepath.WalkDir(root+"/test", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declares.FindAllStringSubmatch(string(text), -1) {
			out[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
