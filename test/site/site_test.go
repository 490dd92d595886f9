// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// TestSite_Tree_PagesAndLinksComplete builds the site of this tree.
func TestSite_Tree_PagesAndLinksComplete(t *testing.T) {
	out := filepath.Join(t.TempDir(), "1.2.3")
	if err := run("1.2.3", out); err != nil {
		t.Fatal(err)
	}
	// Every page of docs/ is reached.
	err := filepath.WalkDir("../../docs", func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".md" {
			return err
		}
		source, err := filepath.Rel("../..", file)
		if err != nil {
			return err
		}
		_, err = os.Stat(filepath.Join(out, address(source)))
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := run("1.10.0", filepath.Join(filepath.Dir(out), "1.10.0")); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(filepath.Dir(out), "versions.js"))
	if err != nil || string(list) != "window.versions = [\"1.10.0\",\"1.2.3\"];\n" {
		t.Errorf("versions are %s, %v", list, err)
	}
	newest, err := os.ReadFile(filepath.Join(filepath.Dir(out), "index.html"))
	if err != nil || !strings.Contains(string(newest), "url=1.10.0/index.html") {
		t.Errorf("the first page is %s, %v", newest, err)
	}
	home, err := os.ReadFile(filepath.Join(out, "docs/mig.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<title>MIG", "<option>1.2.3</option>", `<a href="../docs/mig.html" aria-current="page">MIG partitions</a>`, `<div class="wide"><table>`, "<h2 id="} {
		if !strings.Contains(string(home), want) {
			t.Errorf("docs/mig.html has no %s", want)
		}
	}
}

func small(files map[string]string) fs.FS {
	tree := fstest.MapFS{
		"README.md":      {Data: []byte("# Project\n\n[Documentation](docs/README.md)\n")},
		"docs/README.md": {Data: []byte("# Documentation\n\n## Use\n\n| page | for |\n| --- | --- |\n| [One `page`](one.md) | all |\n")},
		"docs/one.md":    {Data: []byte("# One `page`\n\nSome text.\n")},
	}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}

func TestSite_LinkWithoutTarget_Refused(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a page", "[b](two.md)", "docs/one.md links to two.md"},
		{"a file", "![b](two.png)", "docs/one.md links to two.png"},
		{"a file outside", "[b](../../two)", "docs/one.md links to ../../two"},
		{"a heading of another page", "[b](README.md#nothing)", "docs/one.html links to ../docs/index.html#nothing, and docs/index.html has no such heading"},
		{"a heading of the page", "[b](#nothing)", "docs/one.html links to #nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := build(small(map[string]string{"docs/one.md": c.text + "\n"}), "")
			if err == nil {
				err = s.check()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestSite_Links_LeadToFilesOfTheSite(t *testing.T) {
	s, err := build(small(map[string]string{
		"docs/one.md": "# One `page`\n\n## A heading: with, marks\n\n## A heading: with, marks\n\n[all](../demo), [one](../demo/a.yaml), [up](../README.md), " +
			"[here](#a-heading-with-marks-1), [away](https://example.com/a.md)\n\n![picture](p/q.svg)\n\n```sh\nmake something\n```\n",
		"demo/a.yaml": "a: 1\n", "demo/b c.yaml": "b: 1\n", "docs/p/q.svg": "<svg/>",
	}), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.check(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{`href="../demo/index.html"`, `href="../demo/a.yaml"`, `href="../index.html"`, `href="https://example.com/a.md"`, `src="../docs/p/q.svg"`, "<title>One page –"} {
		if !strings.Contains(string(s.files["docs/one.html"]), want) {
			t.Errorf("the page has no %s:\n%s", want, s.files["docs/one.html"])
		}
	}
	if list := string(s.files["demo/index.html"]); !strings.Contains(list, `<a href="b%20c.yaml">b c.yaml</a>`) {
		t.Errorf("the list of demo/ is\n%s", list)
	}
	data, _ := strings.CutPrefix(strings.TrimSuffix(string(s.files["search.js"]), ";\n"), "window.parts = ")
	var index []struct{ Title, URL, Text string }
	if err := json.Unmarshal([]byte(data), &index); err != nil {
		t.Fatal(err)
	}
	found := ""
	for _, p := range index {
		if strings.Contains(p.Text, "make something") {
			found = p.URL + " " + p.Title
		}
	}
	if found != "docs/one.html#a-heading-with-marks-1 One page: A heading: with, marks" || len(index) != 7 {
		t.Errorf("search finds %q in %d parts", found, len(index))
	}
}
