// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command site writes the documentation as a static site: all pages in Markdown that README.md and docs/ reach, with navigation,
// search, and light and dark colours. It needs no server. A link without a target is an error.
//
//	go -C test run ./site -version 1.2.3 -out ../dist/site/1.2.3
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gpu-dra-driver/test/demos"
)

func main() {
	version := flag.String("version", "", "version in the head of each page")
	out := flag.String("out", "", "directory of the site; it is replaced")
	flag.Parse()
	if err := run(*version, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

func run(version, out string) error {
	if out == "" || flag.NArg() > 0 {
		return fmt.Errorf("give -out, and no other arguments")
	}
	root, err := demos.Tree()
	if err != nil {
		return err
	}
	s, err := build(os.DirFS(root), version)
	if err != nil {
		return err
	}
	if err := s.check(); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	for name, data := range s.files {
		file := filepath.Join(out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%s has %d pages; open %s\n", out, len(s.pages), filepath.Join(out, "index.html"))
	return nil
}
