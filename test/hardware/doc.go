// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package hardware checks the driver's view of real GPUs, on any machine.
//
// It reads, and runs an MPS daemon and processes of its own. It changes no setting of a GPU, because other processes
// may use it. On a machine without an NVIDIA GPU it logs that and passes. It fails where a GPU is present and NVML is not
// found. "make test-hardware" runs it. With -args
// -record FILE it writes the facts as a profile of the simulator; a person completes the facts that package `nvml`
// lacks. With -out DIR it writes what it saw to facts.json. The directory recorded has recordings of real machines, which
// unit tests replay.
package hardware
