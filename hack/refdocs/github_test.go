// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type workflow struct {
	On          any               `json:"true"` // YAML takes the key "on" for true.
	Permissions map[string]string `json:"permissions"`
	Concurrency struct {
		Group string `json:"group"`
	} `json:"concurrency"`
	Jobs map[string]struct {
		Strategy struct {
			Matrix map[string][]string `json:"matrix"`
		} `json:"strategy"`
		Steps []struct {
			Run string `json:"run"`
		} `json:"steps"`
	} `json:"jobs"`
}

// form is an issue form, or with ContactLinks the chooser of forms.
type form struct {
	Name, Description string
	Body              []struct {
		Type, ID   string
		Attributes struct{ Label, Value string }
	}
	ContactLinks []struct{ Name, URL, About string } `json:"contact_links"`
}

func TestGitHub_Files_AreComplete(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	checked := map[string]int{}
	err = filepath.WalkDir("../../.github", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder := filepath.Base(filepath.Dir(path))
		checked[folder]++
		if folder == "workflows" {
			checkWorkflow(t, path, data, string(makefile))
		} else {
			checkForm(t, path, data)
		}
		return nil
	})
	if err != nil || checked["workflows"] < 4 || checked["ISSUE_TEMPLATE"] < 3 {
		t.Errorf("checked %v, %v", checked, err)
	}
}

func checkWorkflow(t *testing.T, path string, data []byte, makefile string) {
	t.Helper()
	var w workflow
	if err := yaml.Unmarshal(data, &w); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	read := map[string]string{"contents": "read"}
	if !maps.Equal(w.Permissions, read) || w.Concurrency.Group == "" {
		t.Errorf("%s: a workflow only reads, and has a group of concurrency", path)
	}
	// Only who may push a tag gets at the key and at rights to write.
	tags := fmt.Sprint(w.On) == "map[push:map[tags:[v*]]]"
	if trusted := strings.Contains(string(data), "secrets.") || strings.Contains(string(data), ": write"); trusted != tags {
		t.Errorf("%s: it runs on %v, and its secrets and rights to write are %t", path, w.On, trusted)
	}
	runs := 0
	for _, job := range w.Jobs {
		for _, step := range job.Steps {
			for _, command := range matrixed(step.Run, job.Strategy.Matrix) {
				words := strings.Fields(command)
				if len(words) == 0 || words[0] == "git" {
					continue
				}
				runs++
				if words[0] == "make" {
					target := words[1]
					if !strings.Contains(makefile, "\n"+target+": ") {
						t.Errorf("%s: the Makefile has no target %q", path, target)
					}
				} else if _, err := os.Stat(filepath.Join("../..", words[0])); err != nil {
					t.Errorf("%s: %v", path, err)
				}
			}
		}
	}
	if runs == 0 {
		t.Errorf("%s runs nothing", path)
	}
}

var inMatrix = regexp.MustCompile(`\$\{\{ *matrix\.(\w+) *\}\}`)

// matrixed returns a command once for each value of the matrix that it names.
func matrixed(command string, matrix map[string][]string) []string {
	name := inMatrix.FindStringSubmatch(command)
	if name == nil {
		return []string{command}
	}
	var out []string
	for _, value := range matrix[name[1]] {
		out = append(out, strings.ReplaceAll(command, name[0], value))
	}
	return out
}

func checkForm(t *testing.T, path string, data []byte) {
	t.Helper()
	var f form
	if err := yaml.Unmarshal(data, &f); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if filepath.Base(path) == "config.yml" {
		if len(f.ContactLinks) == 0 {
			t.Errorf("%s has no link", path)
		}
		for _, link := range f.ContactLinks {
			if link.Name == "" || link.About == "" || !strings.HasPrefix(link.URL, "https://") {
				t.Errorf("%s: link %+v is incomplete", path, link)
			}
		}
		return
	}
	if f.Name == "" || f.Description == "" || len(f.Body) == 0 {
		t.Errorf("%s lacks name, description or body", path)
	}
	ids := map[string]bool{}
	for i, part := range f.Body {
		text := part.Type == "markdown"
		if known := text || part.Type == "textarea" || part.Type == "input"; !known || text && part.Attributes.Value == "" ||
			!text && (part.Attributes.Label == "" || part.ID == "" || ids[part.ID]) {
			t.Errorf("%s: part %d of type %q lacks its text, or a label and an ID of its own", path, i, part.Type)
		}
		ids[part.ID] = true
	}
}
