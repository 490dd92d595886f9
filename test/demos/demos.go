// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package demos lists the demos of the source tree.
package demos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Demo is a runnable example.
type Demo struct {
	// Name is the file's, without .yaml.
	Name, Path string
	// Title is the file's first comment line, Description what follows it, as one paragraph.
	Title, Description string
	// Pods is how many pods run, Pending how many cannot be scheduled; the file says so in comments, "# Pods: 2".
	Pods, Pending int
	// Alone says that there is no room for another demo beside it; the file says why, "# Alone: …".
	Alone bool
	// Settings is the file of chart values that it needs, in demo/settings, "# Settings: replicas.yaml".
	Settings string
}

// Namespace is the demo's own.
func (d Demo) Namespace() string { return "demo-" + d.Name }

// parse reads the comments at the head of a demo's file.
func (d *Demo) parse(text string) error {
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
			if label == "Pods" {
				d.Pods = n
			} else {
				d.Pending = n
			}
		default:
			d.Description = strings.TrimSpace(d.Description + " " + comment)
		}
	}
	if d.Title == "" || d.Pods+d.Pending == 0 {
		return fmt.Errorf("%s: its head must have a title and a line \"# Pods: N\" or \"# Pending: N\"", d.Path)
	}
	return nil
}

// List returns the demos of a source tree in order of their names.
func List(tree string) ([]Demo, error) {
	paths, err := filepath.Glob(filepath.Join(tree, "demo", "*.yaml"))
	if err != nil {
		return nil, err
	}
	var out []Demo
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		d := Demo{Name: strings.TrimSuffix(filepath.Base(path), ".yaml"), Path: path}
		if err := d.parse(string(data)); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no demos in %s", filepath.Join(tree, "demo"))
	}
	return out, nil
}

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
