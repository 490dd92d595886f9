// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demos lists the demos of the source tree.
package demos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Demo is a runnable example.
type Demo struct {
	// Name is the file's, without .yaml, or the directory's.
	Name, Path string
	// Title is the file's first comment line, Description what follows it, as one paragraph.
	Title, Description string
	// Pods is how many pods run, Pending how many cannot be scheduled; the file says so in comments, "# Pods: 2".
	Pods, Pending int
	// Alone says that there is no room for another demo beside it; the file says why, "# Alone: …".
	Alone bool
	// Settings is the file of chart values that it needs, in demo/settings, "# Settings: replicas.yaml".
	Settings string
	// Steps are the commands for a person to type once the pods of the file have settled, "# Then: `kubectl …`". "# Refused: …"
	// has a command that must fail.
	Steps []Step
	// PodsAfter and PendingAfter count the pods after the steps, from lines "# Pods: 2" below the first step. Without such
	// lines the steps change neither.
	PodsAfter, PendingAfter int
}

// Step is a command of a demo.
type Step struct {
	// Command is the command line, from the root of the source tree. Its words have no quotes.
	Command string
	Refused bool
}

// AfterSteps returns the demo with the pods that its steps leave.
func (d Demo) AfterSteps() Demo {
	d.Pods, d.Pending = d.PodsAfter, d.PendingAfter
	return d
}

// Namespace is the demo's own.
func (d Demo) Namespace() string { return "demo-" + d.Name }

// parse reads the comments at the head of a demo's file.
func (d *Demo) parse(text string) error {
	counted := false // after the steps
	for line := range strings.Lines(text) {
		comment, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		comment = strings.TrimSpace(comment)
		label, value, _ := strings.Cut(comment, ":")
		value = strings.TrimSpace(value)
		switch {
		case d.Title == "":
			d.Title = comment
		case label == "Alone":
			d.Alone = true
		case label == "Settings":
			d.Settings = value
		case label == "Pods" || label == "Pending":
			n, err := strconv.Atoi(value)
			if err != nil {
				return fmt.Errorf("%s: %q is not a number", d.Path, value)
			}
			pods, pending := &d.Pods, &d.Pending
			if len(d.Steps) > 0 {
				counted, pods, pending = true, &d.PodsAfter, &d.PendingAfter
			}
			if label == "Pods" {
				*pods = n
			} else {
				*pending = n
			}
		case label == "Then" || label == "Refused":
			command := strings.Trim(value, "`")
			if !strings.HasPrefix(command, "kubectl ") {
				return fmt.Errorf("%s: the step %q is not a kubectl command", d.Path, value)
			}
			d.Steps = append(d.Steps, Step{Command: command, Refused: label == "Refused"})
		default:
			d.Description = strings.TrimSpace(d.Description + " " + comment)
		}
	}
	if !counted {
		d.PodsAfter, d.PendingAfter = d.Pods, d.Pending
	}
	if d.Title == "" || d.Pods+d.Pending == 0 {
		return fmt.Errorf("%s: its head must have a title and a line \"# Pods: N\" or \"# Pending: N\"", d.Path)
	}
	return nil
}

// List returns the demos of a source tree in order of their names: the files of demo, and those of its directories whose head
// counts pods. Such a directory is one demo, and its other files are for the steps.
func List(tree string) ([]Demo, error) {
	var out []Demo
	for _, pattern := range []string{"*.yaml", filepath.Join("*", "*.yaml")} {
		paths, err := filepath.Glob(filepath.Join(tree, "demo", pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			d := Demo{Name: strings.TrimSuffix(filepath.Base(path), ".yaml"), Path: path}
			if pattern != "*.yaml" {
				if !counts.Match(data) {
					continue
				}
				d.Name = filepath.Base(filepath.Dir(path))
			}
			if err := d.parse(string(data)); err != nil {
				return nil, err
			}
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no demos in %s", filepath.Join(tree, "demo"))
	}
	slices.SortFunc(out, func(a, b Demo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// counts finds a head that counts pods.
var counts = regexp.MustCompile(`^(#.*\n)*# (Pods|Pending): `)

// Tree finds the source tree above the working directory.
func Tree() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(data), "module gpu-dra-driver\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("run this inside the source tree")
		}
		dir = filepath.Dir(dir)
	}
}
