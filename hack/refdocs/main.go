// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command refdocs writes the generated Markdown: the pages of docs/reference and the table of layers in
// ARCHITECTURE.md.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gpu-dra-driver/hack/layers"
)

//go:generate go run . ../..

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: refdocs ROOT")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(root string) error {
	all, err := pages(root)
	if err != nil {
		return err
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(root, "docs/reference", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return architecture(filepath.Join(root, "ARCHITECTURE.md"))
}

// architecture replaces the table of layers between two comments.
func architecture(path string) error {
	const begin, end = "<!-- layers: generated from hack/layers/layers.tsv -->\n", "<!-- end of layers -->\n"
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	table, err := layers.Markdown()
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(data), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the comments %q and %q", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+table+end+after), 0o644)
}
