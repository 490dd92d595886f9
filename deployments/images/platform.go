// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
)

// platform is an architecture that images are built for, with the C compiler and the C library of this machine for it.
type platform struct {
	os       string // GOOS; empty for `linux`
	arch     string // GOARCH
	triplet  string // of Debian's directories and compilers
	compiler string // empty for the go command's default
	sysroot  string // the directory that holds the C library
}

// platforms returns the platforms of a comma-separated list of architectures, sorted. The C library of a foreign
// architecture is where Debian's cross compilers have it.
func platforms(list string) ([]platform, error) {
	triplets := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
	archs := strings.Split(list, ",")
	slices.Sort(archs)
	var chosen []platform
	for _, arch := range slices.Compact(archs) {
		triplet, ok := triplets[arch]
		if !ok {
			known := strings.Join(slices.Sorted(maps.Keys(triplets)), ", ")
			return nil, fmt.Errorf("no images for the architecture %q; there are: %s", arch, known)
		}
		p := platform{arch: arch, triplet: triplet, sysroot: "/"}
		if arch != runtime.GOARCH {
			p.compiler, p.sysroot = triplet+"-gcc", "/usr/"+triplet
		}
		chosen = append(chosen, p)
	}
	return chosen, nil
}

// env returns the variables of the go command for a binary. They include all that change a binary's bytes and that a
// shell may have set.
func (p platform) env(bin binary) []string {
	env := []string{"GOOS=" + cmp.Or(p.os, "linux"), "GOARCH=" + p.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0"}
	if !bin.cgo {
		return env
	}
	env = append(env, "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if p.compiler != "" {
		env = append(env, "CC="+p.compiler)
	}
	return env
}
