// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package hardware checks the driver's view of real GPUs, on whatever machine it runs.
//
// It reads, and runs an MPS daemon and processes of its own. It changes no setting of a GPU, which others may use. On a machine without an NVIDIA GPU it
// says so and passes. "make test-hardware" runs it; with -args -record FILE it writes what it read as a profile of the
// simulator, to be completed by hand with what NVML's border does not carry.
package hardware
