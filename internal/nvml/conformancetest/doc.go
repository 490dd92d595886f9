// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformancetest is the contract of nvml.Library as a test that any implementation passes on any machine: the
// NVML fake, the simulated library and the real driver on whatever GPUs it has.
//
// Run only reads; Partition, which cuts GPUs, is for simulated ones alone. A GPU that is lost, or that answers
// NotSupported, is no failure: what is checked is that each answer has its form and each refusal its type.
package conformancetest
