// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadme_Values_Current(t *testing.T) {
	for _, name := range []string{"gpu-dra-driver", "gpu-simulator"} {
		chart := filepath.Join(t.TempDir(), "chart")
		if err := os.CopyFS(chart, os.DirFS("../"+name)); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(chart, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		if err := run([]string{"readme", chart}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(chart, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("README.md of %s is not what values.yaml says; run make generate", name)
		}
	}
}

func TestFaults_Template_Current(t *testing.T) {
	got, err := os.ReadFile("../gpu-dra-driver/templates/_faults.tpl")
	if err != nil || string(got) != faults() {
		t.Errorf("_faults.tpl is not as in pkg/wire/schedulerfault; run make generate (%v)", err)
	}
}

func TestValuesTable_Comments_BecomeRows(t *testing.T) {
	got, err := valuesTable([]byte("a:\n  # -- First | second.\n  b: [1, 2]\n  # -- C.\n  # @default -- some\n  c: {d: 1}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := "| value | default | meaning |\n| --- | --- | --- |\n| `a.b` | `[1, 2]` | First \\| second. |\n| `a.c` | some | C. |\n"
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for _, bad := range []string{"a: 1\n", "a: {}\n", "- a\n", "", ":\n:"} {
		if _, err := valuesTable([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestKindSchema_Kind_WithDefinitions(t *testing.T) {
	doc := schema{"components": schema{"schemas": schema{
		"x.Thing": schema{
			"x-kubernetes-group-version-kind": []any{schema{"group": "g", "version": "v1", "kind": "Thing"}},
			"properties": schema{
				"port": schema{"x-kubernetes-int-or-string": true},
				"part": schema{"allOf": []any{schema{"$ref": "#/components/schemas/x.Part"}}, "default": schema{}},
			},
		},
		"x.Part":   schema{"type": "object", "additionalProperties": schema{"type": "string"}, "description": "prose"},
		"x.Unused": schema{},
	}}}
	got, err := kindSchema(doc, "g", "v1", "Thing")
	if err != nil {
		t.Fatal(err)
	}
	definitions := got["definitions"].(schema)
	if len(definitions) != 2 || definitions["x.Part"].(schema)["description"] != nil {
		t.Errorf("definitions = %v", definitions)
	}
	thing := definitions["x.Thing"].(schema)
	if thing["additionalProperties"] != false {
		t.Error("an unknown field would pass")
	}
	if _, err := kindSchema(doc, "g", "v2", "Thing"); err == nil {
		t.Error("a kind that is not there was found")
	}
	if err := run([]string{"schemas", t.TempDir(), t.TempDir(), "core/v1/Pod"}); err == nil || !strings.Contains(err.Error(), "api__v1_openapi.json") {
		t.Errorf("error = %v", err)
	}
	if err := run([]string{"schemas", t.TempDir(), t.TempDir(), "Pod"}); err == nil {
		t.Error("Pod is not group/version/Kind")
	}
	if err := run(nil); err == nil {
		t.Error("no verb was taken")
	}
}

func FuzzValuesTable_AnyBytes_NoPanic(f *testing.F) {
	f.Add([]byte("# -- A.\na: 1\n"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = valuesTable(data) // must not panic
	})
}
