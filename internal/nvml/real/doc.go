// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package real is the border to the driver's own libnvidia-ml.so.1, through go-nvml. Nothing else imports go-nvml.
//
// Traps. The dynamic linker binds NVML's functions once: the first library that a process loads answers for all its
// life, whatever is on disk later. After a driver upgrade that library no longer speaks to the kernel module, so Open
// answers nvml.ErrReplaced and the process has to start again. A process therefore reaches one library, and two driver roots
// need two processes. A function that the installed driver lacks ends the process when it is called, so each is looked
// up before. Never link with -z now or run under LD_BIND_NOW=1: every absent function would count as called.
package real
