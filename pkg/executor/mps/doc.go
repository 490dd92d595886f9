// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mps has an MPS daemon serve a device for as long as a claim needs it: the daemon itself is the supervisor's,
// the GPU's compute mode is set here, so that only the daemon reaches the GPU, and goes back to what it was.
//
// Traps. A daemon's limit must be at least that of its largest client, so a smaller share is held to its own limit by its
// environment alone. In the compute mode DEFAULT a process that unsets CUDA_MPS_PIPE_DIRECTORY has the whole GPU; in
// EXCLUSIVE_PROCESS it has nothing. A MIG device has no compute mode.
package mps
