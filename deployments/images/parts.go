// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"maps"
	"net/url"
	"os/exec"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// part is software in an image: a Go module or a Debian package.
type part struct {
	name, version string
	purl          string
	license       string // SPDX expression; empty if only the texts say it
	texts         []entry
}

// parts returns the Go modules in the built binaries and the Debian packages of the libraries, sorted. It fails if one
// has no licence text.
func (b builder) parts(ctx context.Context, p platform, im image, built []string, libs []entry) ([]part, error) {
	list, err := debianParts(ctx, p, libs)
	if err != nil {
		return nil, err
	}
	for i, bin := range im.binaries {
		modules, err := b.goParts(ctx, p, bin, built[i])
		if err != nil {
			return nil, fmt.Errorf("cannot list the modules of %s: %w", bin.path, err)
		}
		list = append(list, modules...)
	}
	unique := map[string]part{}
	for _, one := range list {
		if len(one.texts) == 0 {
			return nil, fmt.Errorf("no licence text of %s@%s was found", one.name, one.version)
		}
		// Two binaries use other packages of a module, with other texts.
		texts := append(slices.Clone(one.texts), unique[one.purl].texts...)
		slices.SortFunc(texts, func(a, b entry) int { return strings.Compare(a.name, b.name) })
		one.texts = slices.CompactFunc(texts, func(a, b entry) bool { return a.name == b.name })
		unique[one.purl] = one
	}
	return slices.SortedFunc(maps.Values(unique), func(a, b part) int { return strings.Compare(a.purl, b.purl) }), nil
}

// goParts reads the modules from the binary itself.
func (b builder) goParts(ctx context.Context, p platform, bin binary, built string) ([]part, error) {
	info, err := buildinfo.ReadFile(built)
	if err != nil {
		return nil, err
	}
	texts, err := b.moduleLicenses(ctx, p, bin)
	if err != nil {
		return nil, err
	}
	goroot, err := b.goCommand(ctx, bin.dir, nil, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std := part{name: "std", version: strings.TrimPrefix(info.GoVersion, "go"), license: "BSD-3-Clause"}
	if std.texts, err = licensesIn(strings.TrimSpace(goroot), licenseDir(std.name, std.version)); err != nil {
		return nil, err
	}
	list := []part{std}
	for _, m := range append(info.Deps, &info.Main) {
		one := part{name: m.Path, version: m.Version, texts: texts[m.Path]}
		if ours(m) {
			one.version, one.license = b.version, "Apache-2.0"
			own, err := licenseText(filepath.Join(b.root, "LICENSE"), "licenses/"+m.Path)
			if err != nil {
				return nil, err
			}
			one.texts = []entry{own}
		}
		list = append(list, one)
	}
	for i := range list {
		list[i].purl = "pkg:golang/" + list[i].name + "@" + list[i].version
	}
	return list, nil
}

// ours reports whether a module is one of this repository. They have no version, or are replaced by a directory.
func ours(m *debug.Module) bool {
	return m.Version == "" || m.Version == "(devel)" || m.Replace != nil && m.Replace.Version == ""
}

// debianParts returns the packages that own the libraries.
func debianParts(ctx context.Context, p platform, libs []entry) ([]part, error) {
	if len(libs) == 0 {
		return nil, nil
	}
	// The package database has a file of /lib under that path or, on newer distributions, in /usr/lib.
	plain := func(file string) string { return path.Join("/", strings.TrimPrefix(file, "/usr")) }
	search := []string{"--search"}
	for _, lib := range libs {
		file := path.Join(p.sysroot, lib.name)
		search = append(search, file, path.Join("/usr", file))
	}
	// The status is 1, because one of the two paths is unknown.
	found, _ := exec.CommandContext(ctx, "dpkg-query", search...).Output()
	owners := map[string]string{} // by file
	for line := range strings.Lines(string(found)) {
		owner, file, _ := strings.Cut(strings.TrimSpace(line), ": ")
		owners[plain(file)] = owner
	}
	show := []string{"--show", "--showformat", "${Package} ${Version} ${Architecture}\n"}
	for _, lib := range libs {
		owner, ok := owners[plain(path.Join(p.sysroot, lib.name))]
		if !ok {
			return nil, fmt.Errorf("%s is of no Debian package, so its version and licence are unknown; "+
				"build on Debian or Ubuntu, or with deployments/images/Dockerfile", lib.name)
		}
		if !slices.Contains(show, owner) {
			show = append(show, owner)
		}
	}
	shown, err := exec.CommandContext(ctx, "dpkg-query", show...).Output()
	if err != nil {
		return nil, fmt.Errorf("cannot read the versions of packages: %w", err)
	}
	var list []part
	for line := range strings.Lines(string(shown)) {
		fields := strings.Fields(line)
		name, version, arch := fields[0], fields[1], fields[2]
		texts, err := debianLicenses(name, licenseDir(name, version))
		if err != nil {
			return nil, err
		}
		purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", name, url.QueryEscape(version), arch)
		list = append(list, part{name: name, version: version, purl: purl, texts: texts})
	}
	return list, nil
}
