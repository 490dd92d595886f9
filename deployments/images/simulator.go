// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// simulatorParts is the directory of the files that the simulator installs on a node.
const simulatorParts = "usr/lib/gpusim/"

// simulator is the image of the simulator's chart. It has no software of NVIDIA.
var simulator = image{
	name:   "gpu-simulator",
	title:  "Simulates NVIDIA GPUs on nodes without GPUs, for tests; contains no NVIDIA software",
	chart:  "gpu-simulator",
	values: `image: {digest: %q}`,
	binaries: []binary{
		{pkg: "./sim/cmd/gpusim-node", path: "usr/bin/gpusim-node"},
		{pkg: "./sim/cmd/gpusim", path: "usr/bin/gpusim"},
		// The stand-ins for nvidia-cuda-mps-control and nvidia-modprobe too: its name selects the program.
		{pkg: "./sim/cmd/nvidia-smi", path: simulatorParts + "nvidia-smi"},
		{pkg: "./sim/libnvidiaml", path: simulatorParts + "libnvidia-ml.so.1", cgo: true, soname: "libnvidia-ml.so.1"},
	},
	user: rootUser, // It makes device nodes.
}
