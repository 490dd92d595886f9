// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package layers holds the layers of the packages that ship. A package imports only from lower layers; there are no
// exceptions. Packages whose name ends in "test" hold fixtures, have no layer and are imported by tests only. They
// stand in internal.
package layers

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed layers.tsv
var table string

// Kind restricts the imports of a package.
type Kind string

// The kinds of packages.
const (
	Pure    Kind = "pure"    // values and functions: no clock, file, goroutine, environment or client
	Machine Kind = "machine" // the node: operating system, NVML, driver root, MPS daemons
	Cluster Kind = "cluster" // the API server or the kubelet
	Command Kind = "command" // flags and wiring
)

// Package is one row of the table.
type Package struct {
	Layer int
	Kind  Kind
	Path  string
	Owns  string
}

// Packages returns the table.
func Packages() ([]Package, error) {
	var out []Package
	for n, line := range strings.Split(table, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "\t")
		if len(fields) != 4 {
			return nil, fmt.Errorf("layers.tsv line %d has %d fields, want 4", n+1, len(fields))
		}
		layer, err := strconv.Atoi(fields[0])
		if err != nil {
			return nil, fmt.Errorf("layers.tsv line %d: layer: %w", n+1, err)
		}
		out = append(out, Package{layer, Kind(fields[1]), fields[2], fields[3]})
	}
	return out, nil
}

// Wing groups packages by their subject: the folder below pkg/, or the top folder. pkg/devicestate, pkg/cdi and
// pkg/partition are of the wing claim.
func (p Package) Wing() string {
	top, rest, _ := strings.Cut(p.Path, "/")
	if top != "pkg" {
		return top
	}
	wing, _, _ := strings.Cut(rest, "/")
	if wing == "devicestate" || wing == "cdi" || wing == "partition" {
		return "claim"
	}
	return wing
}

// wings are all wings, lower ones first. No package imports one of a higher wing.
var wings = []struct{ name, holds string }{
	{"api", "types that users write"},
	{"internal", "the border to the machine"},
	{"gpu", "facts of GPUs"},
	{"wire", "words that programs share"},
	{"claim", "work on a claim on its node"},
	{"node", "the plugin of a node: what it measures and publishes"},
	{"cluster", "the model of a cluster, what follows from it, and the controller"},
	{"show", "output for people"},
	{"cmd", "programs"},
}

// Wings returns the names of all wings, lower ones first.
func Wings() (out []string) {
	for _, w := range wings {
		out = append(out, w.name)
	}
	return out
}

// Markdown returns docs/reference/packages.md without its notice: a table for each wing, lower layers first.
func Markdown() (string, error) {
	packages, err := Packages()
	if err != nil {
		return "", err
	}
	slices.SortStableFunc(packages, func(a, b Package) int { return a.Layer - b.Layer })
	var b strings.Builder
	b.WriteString("# Packages\n\nA package imports only packages of lower layers. " +
		"[Architecture](../../ARCHITECTURE.md#six-rules) has the other rules.\n" +
		"The word after the layer says what a package touches: `pure` nothing, `machine` the node, `cluster` the API server or the\n" +
		"kubelet, `command` flags and environment.\n")
	rows := 0
	for _, w := range wings {
		fmt.Fprintf(&b, "\n## %s: %s\n\n| package | layer | owns |\n| --- | --- | --- |\n", w.name, w.holds)
		for _, p := range packages {
			if p.Wing() == w.name {
				fmt.Fprintf(&b, "| `%s` | %d %s | %s |\n", p.Path, p.Layer, p.Kind, p.Owns)
				rows++
			}
		}
	}
	if rows != len(packages) {
		return "", fmt.Errorf("layers.tsv has %d packages, of which %d are in a known wing", len(packages), rows)
	}
	return b.String(), nil
}
