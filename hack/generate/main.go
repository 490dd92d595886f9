// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command generate writes the reference pages into the directory given.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"gpu-dra-driver/internal/refdocs"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range refdocs.Pages() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
