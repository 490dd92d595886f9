// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mig makes and unmakes MIG partitions, and switches a GPU's MIG mode when a partition or the whole needs it.
//
// A partition is a GPU instance and a compute instance that takes all of it. It is identified by its GPU, profile and
// first memory slice, so that it is found again after a crash at any point; once it exists, its UUID tells it from
// another that an administrator made in the same place.
//
// Traps. A GPU instance without a compute instance has no MIG device, so instances are enumerated, never devices. A
// creation that answers with an error may have been carried out: what counts is what is there afterwards. Switching the
// mode can change the GPU's minor number and invalidates its handle. The mode is never switched off while an instance
// lives, and not at once when the last one goes, for the next claim may want one again.
package mig
