// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package programs runs NVIDIA's own programs over simulated GPUs and compares the driver with them. hack/tool.sh builds
// those of tools/nvidia/go.mod, and the go command the one of tools/toolkit/go.mod.
package programs
