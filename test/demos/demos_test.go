// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demos

import (
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
		Pods: 2, Pending: 1, Alone: true, Settings: "replicas.yaml",
	}
	if diff := cmp.Diff(want, d); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParse_HeadIncomplete_ReturnsError(t *testing.T) {
	for _, text := range []string{"", "kind: Pod\n", "# Title\n", "# Title\n# Pods: two\n", "kind: Pod\n# Pods: 2\n"} {
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
