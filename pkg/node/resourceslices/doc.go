// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package resourceslices converts a Snapshot to the devices of the node's two pools, slice by slice.
//
// The result depends only on the arguments. It is identical for the same hardware, in whatever order NVML enumerates
// the GPUs. Data that cannot be published safely becomes a Warning; a faulty GPU never affects the rest of the pool.
//
// Traps. The scheduler counts only visible devices, so a held device stays published until its release, whatever
// happens to its GPU. On a server without device taints any claim could get monitor devices and unhealthy GPUs, so they
// are not published there. Attribute names without a domain are in the driver's own.
package resourceslices
