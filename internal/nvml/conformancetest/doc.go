// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformancetest is the contract of nvml.Library as a test. Every implementation passes it on every machine:
// the NVML fake, the simulated library and the real driver with its GPUs.
//
// Run only reads. Partition creates partitions, so it is for simulated GPUs only. A lost GPU or the answer
// NotSupported is not a failure: the test checks the form of each answer and the type of each error.
package conformancetest
