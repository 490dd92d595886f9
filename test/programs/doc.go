// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package programs runs NVIDIA's own programs over simulated GPUs and compares the driver with them. hack/tool.sh builds
// the programs from tools/nvidia/go.mod.
package programs
