// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demos_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gpu-dra-driver/test/demos"
)

// TestManifests_EachRow_NamesACase compares the table of the documentation with demos and end-to-end tests.
func TestManifests_EachRow_NamesACase(t *testing.T) {
	tree, err := demos.Tree()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(tree, "docs", "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, begins := strings.Cut(string(page), "<!-- manifests:")
	table, _, ends := strings.Cut(table, "<!-- end of manifests -->")
	if !begins || !ends {
		t.Fatal("docs/compatibility.md has no table of manifests")
	}
	files, err := filepath.Glob(filepath.Join(tree, "test", "e2e", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(text)
	}
	rows := regexp.MustCompile("(?m)^\\| .* \\| `(.*)` \\|$").FindAllStringSubmatch(table, -1)
	if want := strings.Count(table, "\n| ") - 2; len(rows) != want || want < 30 {
		t.Errorf("%d of %d rows name a case", len(rows), want)
	}
	for _, row := range rows {
		name := row[1]
		if strings.HasPrefix(name, "demo/") {
			if _, err := os.Stat(filepath.Join(tree, name)); err != nil {
				t.Error(err)
			}
		} else if !strings.Contains(tests.String(), "func "+name+"(t *testing.T)") {
			t.Errorf("test/e2e has no test %s", name)
		}
	}
}
