// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "slices"

// image describes one image: its content and its entrypoint.
type image struct {
	name     string   // last part of the repository and of the file name
	binaries []binary // the first is the entrypoint
	libs     []string // sonames that the binaries load with dlopen
	user     string   // numeric, "uid:gid"
	env      []string
	title    string
	chart    string // whose values name the image; empty if none does
	values   string // that chart's values for a digest, as a format in YAML
}

// binary is one Go program and its path in the image.
type binary struct {
	dir  string // module that the package is built in, relative to the repository
	pkg  string // import path, or ./path in the module
	path string // in the image
	cgo  bool   // links the C library
	// static means that a cgo program contains the C library. It must not load other libraries.
	static bool
	// soname means that the package is a C library with this name, and no program.
	soname string
	// stamp names the string variable for the image's version, or for the version of the package's module if that is
	// another one.
	stamp string
}

// repository is the prefix of every image's name.
const repository = "gpu-dra-driver"

// rootUser is the plugin's user: it writes into the kubelet's and the CDI directories, which root owns.
const rootUser = "0:0"

// nonRoot is the conventional unprivileged user of distroless images.
const nonRoot = "65532:65532"

// nvmlLibs are the sonames that a real libnvidia-ml.so.1, the driver's programs or a Go c-shared object need. The C library merged most of
// them in 2.34, but the driver's binaries still name them.
var nvmlLibs = []string{
	"libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1",
}

// catalog lists every image of the project.
var catalog = slices.Concat(driver, []image{simulator})

// driver are the images of the driver's chart and demos.
var driver = []image{
	{
		name:   "dra-kubelet-plugin",
		title:  "Kubelet plugin of gpu-dra-driver",
		values: `image: {digest: %q}`,
		chart:  "gpu-dra-driver",
		binaries: []binary{
			{pkg: "./cmd/dra-kubelet-plugin", path: "usr/bin/dra-kubelet-plugin", cgo: true, stamp: "main.version"},
			{
				pkg:    "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook",
				path:   "usr/bin/nvidia-cdi-hook",
				cgo:    true,
				static: true, // The node runs it, with any C library or none.
				stamp:  "github.com/NVIDIA/nvidia-container-toolkit/internal/info.version",
			},
			// The node runs it too.
			{pkg: "./cmd/memory-limit-hook", path: "usr/bin/memory-limit-hook"},
		},
		libs: nvmlLibs,
		user: rootUser,
	},
	{
		name:     "mps-supervisor",
		title:    "Supervisor of MPS daemons of gpu-dra-driver",
		values:   `mps: {image: {digest: %q}}`,
		chart:    "gpu-dra-driver",
		binaries: []binary{{pkg: "./cmd/mps-supervisor", path: "usr/bin/mps-supervisor", stamp: "main.version"}},
		libs:     nvmlLibs, // for the programs of a driver root without a C library
		user:     rootUser,
	},
	{
		name:     "dra-controller",
		title:    "Controller of gpu-dra-driver",
		values:   `controller: {image: {digest: %q}}`,
		chart:    "gpu-dra-driver",
		binaries: []binary{{pkg: "./cmd/dra-controller", path: "usr/bin/dra-controller", stamp: "main.version"}},
		user:     nonRoot,
	},
	{
		name:     "probe",
		title:    "Shows what a container sees of its GPUs; used by demos and end-to-end tests",
		binaries: []binary{{dir: "test", pkg: "./probe", path: "usr/bin/probe"}},
		user:     nonRoot,
	},
}
