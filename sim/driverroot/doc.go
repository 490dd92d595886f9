// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package driverroot writes a simulated machine into a directory: the driver's libraries and programs, device nodes,
// and the GPU parts of /proc and /sys.
//
// Plan computes the directory's content from the machine's state; Root writes it, and updates it after each change. A
// manifest lists the written files, so that Down removes nothing else.
//
// Trap. Device nodes need root and CAP_MKNOD.
package driverroot
