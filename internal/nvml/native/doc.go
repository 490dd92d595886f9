// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package native is the binding to the driver's own libnvidia-ml.so.1, through go-nvml. No other package imports
// go-nvml.
//
// Traps. The dynamic linker binds NVML's functions once: the process uses the first loaded library until it ends.
// After a driver upgrade that library does not match the kernel module, so Open returns nvml.ErrReplaced and the
// process must restart. A process therefore uses one library, and two driver roots need two processes. A call of a
// function that the installed driver lacks ends the process, so each function is looked up before. Never link with -z
// now or run under LD_BIND_NOW=1: they resolve every function at the start, including the missing ones.
package native
