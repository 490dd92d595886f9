// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command site writes the documentation as a static site: all pages in Markdown that README.md and docs/ reach, with navigation,
// search, and light and dark colours. It needs no server. A link without a target is an error. Sites of several versions stand side
// by side, and their pages offer the others.
//
//	go -C test run ./site -version 1.2.3 -out ../dist/site/1.2.3
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/mod/semver"

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
	if err := versions(filepath.Dir(out)); err != nil {
		return err
	}
	fmt.Printf("%s has %d pages; open %s\n", out, len(s.pages), filepath.Join(out, "index.html"))
	return nil
}

// versions writes the list of the versions in a directory, which pages of all versions read, and leads to the newest.
func versions(dir string) error {
	sites, err := filepath.Glob(filepath.Join(dir, "*", "search.js"))
	if err != nil {
		return err
	}
	var list []string
	for _, file := range sites {
		list = append(list, filepath.Base(filepath.Dir(file)))
	}
	slices.SortFunc(list, func(a, b string) int { return semver.Compare("v"+b, "v"+a) })
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "versions.js"), fmt.Appendf(nil, "window.versions = %s;\n", data), 0o644); err != nil {
		return err
	}
	const page = `<!doctype html><html lang="en"><meta charset="utf-8"><title>gpu-dra-driver</title>` +
		`<meta http-equiv="refresh" content="0; url=%[1]s/index.html"><a href="%[1]s/index.html">%[1]s</a></html>` + "\n"
	return os.WriteFile(filepath.Join(dir, "index.html"), fmt.Appendf(nil, page, list[0]), 0o644)
}
