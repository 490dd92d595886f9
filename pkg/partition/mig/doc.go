// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package mig creates and destroys MIG partitions, and switches a GPU's MIG mode for partitions and whole GPUs.
//
// A partition is a GPU instance and a compute instance that takes all of it. GPU, profile and first memory slice
// identify it, which is enough to find it after a crash. Once it exists, its UUID distinguishes it from a partition
// that an administrator creates in the same place later.
//
// Traps. A GPU instance without a compute instance has no MIG device, so list instances, never devices. A creation with
// an error may have succeeded: only a new listing counts. A switch of the mode can change the GPU's minor number and
// invalidates its handle. The mode stays on while an instance exists, and for a while after, because the next claim may
// need it.
package mig
