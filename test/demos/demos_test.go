// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demos

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse_Head_GivesFields(t *testing.T) {
	d := Demo{Name: "x", Path: "x.yaml"}
	text := "# A title: it has a colon\n# One line,\n# and another.\n# Alone: it needs all GPUs\n" +
		"# Settings: replicas.yaml\n# Pods: 2\n# Pending: 1\nkind: Pod # Pods: 3\n# Pods: 4\n"
	if err := d.parse(text); err != nil {
		t.Fatal(err)
	}
	want := Demo{
		Name: "x", Path: "x.yaml", Title: "A title: it has a colon", Description: "One line, and another.",
		Pods: 2, Pending: 1, Alone: true, Settings: "replicas.yaml", PodsAfter: 2, PendingAfter: 1,
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_Steps_CountPodsAfterThem(t *testing.T) {
	d := Demo{Name: "x", Path: "x.yaml"}
	text := "# Title\n# Pods: 2\n# Pending: 1\n# Then: `kubectl gpu pack --for nvlink-4`\n# Refused: `kubectl apply -f x`\n# Pods: 3\n"
	if err := d.parse(text); err != nil {
		t.Fatal(err)
	}
	want := Demo{
		Name: "x", Path: "x.yaml", Title: "Title", Pods: 2, Pending: 1, PodsAfter: 3,
		Steps: []Step{{Command: "kubectl gpu pack --for nvlink-4"}, {Command: "kubectl apply -f x", Refused: true}},
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if after := d.AfterSteps(); after.Pods != 3 || after.Pending != 0 {
		t.Errorf("after the steps: %+v", after)
	}
}

// TestList_FilesAndDirectories_SortsDemosByName has a directory whose second file is for a step, and one without demos.
func TestList_FilesAndDirectories_SortsDemosByName(t *testing.T) {
	tree := t.TempDir()
	for name, text := range map[string]string{
		"two.yaml": "# Two\n# Pods: 2\n", "a/first.yaml": "# A\n# Pending: 1\n", "a/step.yaml": "# Step\nkind: Pod\n", "settings/x.yaml": "a: 1\n# Pods: 1\n",
	} {
		file := filepath.Join(tree, "demo", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := List(tree)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	if diff := cmp.Diff([]string{"a", "two"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_HeadIncomplete_ReturnsError(t *testing.T) {
	for _, text := range []string{"", "kind: Pod\n", "# Title\n", "# Title\n# Pods: two\n", "# Title\n# Pods: 1\n# Then: rm x\n", "kind: Pod\n# Pods: 2\n"} {
		if err := new(Demo).parse(text); err == nil {
			t.Errorf("no error for %q", text)
		}
	}
}

func TestList_SourceTree_EveryDemoHasTitle(t *testing.T) {
	tree, err := Tree()
	if err != nil {
		t.Fatal(err)
	}
	all, err := List(tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.Title == "" || d.Description == "" {
			t.Errorf("%s: title %q, description %q", d.Name, d.Title, d.Description)
		}
	}
}
