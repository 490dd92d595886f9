// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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
				files, err := filepath.Glob(filepath.Join("../..", path, "*.go"))
				if err != nil || len(files) == 0 {
					t.Fatalf("package %s: %d files, %v", path, len(files), err)
				}
				source, examples = "", examples+1
				for _, file := range files {
					data, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					source += string(data)
				}
			} else if !strings.Contains(source, line) {
				t.Errorf("the source has no line %q", line)
			}
		}
	}
	if examples < 7 {
		t.Errorf("only %d examples name their package", examples)
	}
}

var (
	named    = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*)`")
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
)

// TestPages_NamedTests_Exist finds tests that a page names as proof and that the tree does not have.
func TestPages_NamedTests_Exist(t *testing.T) {
	exist := map[string]bool{"TestUnit_Situation_Expectation": true} // The pattern itself.
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, found := range declared.FindAllStringSubmatch(string(data), -1) {
			exist[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range handwritten(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range named.FindAllStringSubmatch(string(text), -1) {
			if !exist[found[1]] {
				t.Errorf("%s: there is no test %s", page, found[1])
			}
		}
	}
}

// handwritten are the pages of the root and all of docs/ but the reference.
func handwritten(t *testing.T) []string {
	t.Helper()
	out := []string{"../../demo/kind/README.md"}
	for _, folder := range []string{"", "docs", "docs/design", "docs/recipes", "docs/tours", ".github"} {
		pages, err := filepath.Glob(filepath.Join("../..", folder, "*.md"))
		if err != nil || len(pages) == 0 {
			t.Fatalf("no pages in %q: %v", folder, err)
		}
		out = append(out, pages...)
	}
	return out
}

var (
	link    = regexp.MustCompile(`\]\(([^):]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// TestPages_RelativeLinks_Resolve checks the links between pages, with the headings that they name.
func TestPages_RelativeLinks_Resolve(t *testing.T) {
	for _, page := range handwritten(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			path, anchor, _ := strings.Cut(found[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			data, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", page, err)
			} else if anchor != "" && !slices.Contains(anchors(string(data)), anchor) {
				t.Errorf("%s: %s has no heading for #%s", page, path, anchor)
			}
		}
	}
}

// inTree matches a path of the tree as code.
var inTree = regexp.MustCompile("`((?:api|cmd|deployments|hack|internal|pkg|sim|test)/[^` ]*)`")

// TestPages_NamedPaths_Exist finds packages and files that have moved. The changelog keeps the names of its time.
func TestPages_NamedPaths_Exist(t *testing.T) {
	for _, page := range handwritten(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range inTree.FindAllStringSubmatch(string(text), -1) {
			if filepath.Base(filepath.Dir(page)) == "tours" && function.MatchString(found[0]) {
				continue // TestTours_Stops_CallEachOtherInThisOrder checks functions.
			}
			if _, err := os.Stat(filepath.Join("../..", found[1])); err != nil && filepath.Base(page) != "CHANGELOG.md" {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}

// TestArchitecture_Tour_IsShortAndNamesEachDecision keeps the tour to what one reads in a sitting.
func TestArchitecture_Tour_IsShortAndNamesEachDecision(t *testing.T) {
	data, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	tour := string(data)
	if lines := strings.Count(tour, "\n"); lines > 120 {
		t.Errorf("ARCHITECTURE.md has %d lines, at most 120: move decisions to docs/design", lines)
	}
	pages, err := filepath.Glob("../../docs/design/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		if name := "docs/design/" + filepath.Base(page); !strings.Contains(tour, "("+name+")") {
			t.Errorf("ARCHITECTURE.md has no link to %s", name)
		}
	}
}

func anchors(page string) []string {
	var out []string
	for _, found := range heading.FindAllStringSubmatch(page, -1) {
		out = append(out, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return out
}
