// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// notices returns the licence texts of the other modules in a program of this repository. The program itself says from which
// package and for which platform it was built. A text that several modules have stands once.
func (b builder) notices(ctx context.Context, program string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", fmt.Errorf("cannot read the modules of %s: %w", program, err)
	}
	var p platform
	bin := binary{pkg: "./" + strings.TrimPrefix(info.Path, info.Main.Path+"/")}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			p.os = s.Value
		case "GOARCH":
			p.arch = s.Value
		case "CGO_ENABLED":
			bin.cgo = s.Value == "1"
		}
	}
	parts, err := b.goParts(ctx, p, bin, program)
	if err != nil {
		return "", fmt.Errorf("cannot list the modules of %s: %w", program, err)
	}
	owners := map[string][]string{} // by text
	for _, one := range parts {
		if one.name == info.Main.Path {
			continue
		}
		if len(one.texts) == 0 {
			return "", fmt.Errorf("no licence text of %s@%s was found", one.name, one.version)
		}
		for _, text := range one.texts {
			within := strings.TrimPrefix(text.name, licenseDir(one.name, one.version))
			owners[string(text.data)] = append(owners[string(text.data)], fmt.Sprintf("%s %s (%s)", one.name, one.version, within))
		}
	}
	for text := range owners {
		slices.Sort(owners[text])
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s contains software of others, under the licences below.\n", path.Base(info.Path))
	for _, text := range slices.SortedFunc(maps.Keys(owners), func(a, b string) int { return slices.Compare(owners[a], owners[b]) }) {
		rule := strings.Repeat("=", 80)
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n\n%s\n", rule, strings.Join(owners[text], "\n"), rule, strings.TrimSpace(text))
	}
	return out.String(), nil
}
