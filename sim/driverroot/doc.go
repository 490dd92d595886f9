// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package driverroot lays a simulated machine out as a directory: the driver's libraries and programs, device nodes,
// and the parts of /proc and /sys that show GPUs.
//
// Plan says what the directory holds, a pure function of the machine's state; Root makes it so, and again after each
// change. A manifest lists what was made, so that Down removes that and nothing else.
//
// Trap. Device nodes need root and CAP_MKNOD.
package driverroot
