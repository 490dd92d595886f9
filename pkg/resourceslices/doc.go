// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package resourceslices says what a node publishes: a Snapshot in, the devices of its pool out, slice by slice.
//
// The result depends on the arguments alone and is the same to the byte for the same hardware, however its GPUs were
// enumerated. What cannot be said safely is left out and becomes a Warning; one bad GPU never spoils the pool.
//
// Traps. The scheduler charges only for devices that it can see: one that a claim holds is published until it is
// released, whatever became of its GPU. A server without device taints would hand monitor devices and unhealthy GPUs to
// anybody, so what needs a taint is not published there. Attribute names without a domain are in the driver's own.
package resourceslices
