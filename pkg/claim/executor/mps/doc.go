// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mps runs an MPS daemon for a device while a claim needs it. The supervisor runs the daemon. This package sets
// the GPU's compute mode, so that only the daemon reaches the GPU, and restores it afterwards.
//
// Traps. A daemon's limit must be at least that of its largest client, so only the environment limits a smaller share.
// In the compute mode DEFAULT a process without CUDA_MPS_PIPE_DIRECTORY can use the whole GPU; in EXCLUSIVE_PROCESS it
// gets nothing. A MIG device has no compute mode.
package mps
