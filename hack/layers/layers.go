// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package layers holds the layers of the packages that ship. A package imports only from lower layers; there are no
// exceptions. Packages whose name ends in "test" hold fixtures, have no layer and are imported by tests only.
package layers

import (
	_ "embed"
	"fmt"
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

// Packages returns the table in the order of its layers.
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

// Markdown returns the table as ARCHITECTURE.md shows it.
func Markdown() (string, error) {
	packages, err := Packages()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("| layer | kind | package | owns |\n| --- | --- | --- | --- |\n")
	for _, p := range packages {
		fmt.Fprintf(&b, "| %d | %s | `%s` | %s |\n", p.Layer, p.Kind, p.Path, p.Owns)
	}
	return b.String(), nil
}
