// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
)

// component is a part of an image as CycloneDX describes it.
type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// sbom lists an image's files and the Go modules in its binaries, as CycloneDX in JSON. It has no time and no serial
// number, so that equal images have equal lists.
func sbom(name, version string, files []entry) ([]byte, error) {
	parts := map[string]component{}
	for _, f := range files {
		data := f.data
		if f.source != "" {
			var err error
			if data, err = os.ReadFile(f.source); err != nil {
				return nil, err
			}
			info, err := buildinfo.ReadFile(f.source)
			if err != nil {
				return nil, fmt.Errorf("cannot read the modules of %s: %w", f.name, err)
			}
			std := debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
			for _, m := range append(info.Deps, &info.Main, &std) {
				c := module(m, version)
				parts[c.PURL] = c
			}
		}
		if !strings.HasSuffix(f.name, "/") {
			digest := hash{"SHA-256", fmt.Sprintf("%x", sha256.Sum256(data))}
			parts["/"+f.name] = component{Type: "file", Name: "/" + f.name, Hashes: []hash{digest}}
		}
	}
	list := make([]component, 0, len(parts))
	for _, key := range slices.Sorted(maps.Keys(parts)) {
		list = append(list, parts[key])
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   map[string]any{"component": component{Type: "container", Name: name, Version: version}},
		"components": list,
	}, "", "  ")
}

// module describes a Go module. Modules of this repository have the version of the image.
func module(m *debug.Module, version string) component {
	if m.Replace != nil && m.Replace.Version != "" {
		m = m.Replace
	}
	if m.Version != "" && m.Version != "(devel)" && m.Replace == nil {
		version = m.Version
	}
	return component{Type: "library", Name: m.Path, Version: version, PURL: "pkg:golang/" + m.Path + "@" + version}
}
