// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package recipe describes how each program of the one-node Kubernetes is built from its Go module.
//
// A recipe is a plain value: the go.mod of a temporary module, the packages to build in it and the flags. Its Key
// changes with anything that changes the result, so that a cache entry never goes stale.
//
// Traps: k8s.io/kubernetes requires its staging modules at v0.0.0 and replaces them by directories. So it builds in a
// module of its own, with each of those replaced by a published version (staging.go). `go install pkg@version`
// rejects modules with replace directives, hence the temporary module. runc needs cgo; everything else is built
// without it and is static.
package recipe

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// Component is one Go module and the programs that are built from it.
type Component struct {
	Name    string // cache entry and the name in progress lines
	Module  string // module path; empty for sources of our own
	Version string // module version, with the v
	Binary  string // the program's name if Packages is one package; else each is named after its package
	// Packages are import paths of main packages.
	Packages []string
	Tags     []string
	CGO      bool
	LDFlags  []string
	// GoMod is the text of the temporary module's go.mod.
	GoMod string
	// Sources are more files of the temporary module, by relative path.
	Sources map[string]string
}

// Binaries names the programs that the component builds.
func (c Component) Binaries() []string {
	if c.Binary != "" {
		return []string{c.Binary}
	}
	names := make([]string, len(c.Packages))
	for i, p := range c.Packages {
		names[i] = path.Base(p)
	}
	return names
}

// Key is the name of the component's cache entry: <name>-<version>-<hash of the whole recipe>.
func (c Component) Key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %q %v %q %q\n", c.Name, c.Module, c.Version, c.Binary, c.Packages, c.CGO, c.Tags, c.LDFlags)
	fmt.Fprintf(h, "%q\n", c.GoMod)
	for _, name := range slices.Sorted(maps.Keys(c.Sources)) {
		fmt.Fprintf(h, "%q %q\n", name, c.Sources[name])
	}
	return fmt.Sprintf("%s-%s-%s", c.Name, c.Version, hex.EncodeToString(h.Sum(nil))[:8])
}

// Target is the output path of go build: a program, or the directory out for several programs. One invocation builds all
// packages, so that their common packages are compiled once.
func (c Component) Target(out string) string {
	if c.Binary != "" {
		return path.Join(out, c.Binary)
	}
	return out + "/"
}

// Flags are passed to go build.
func (c Component) Flags() []string {
	flags := []string{
		"-mod=mod", "-trimpath", "-buildvcs=false", "-ldflags", strings.Join(append([]string{"-s", "-w"}, c.LDFlags...), " "),
	}
	if len(c.Tags) > 0 {
		flags = append(flags, "-tags", strings.Join(c.Tags, ","))
	}
	return flags
}

// goMod is the go.mod of a temporary module that requires one other.
func goMod(name, module, version string) string {
	m := "module onenode.invalid/" + name + "\n\ngo 1.26.0\n"
	if module != "" {
		m += "\nrequire " + module + " " + version + "\n"
	}
	return m
}
