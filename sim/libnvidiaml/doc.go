// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command libnvidiaml is libnvidia-ml.so.1: NVML's C ABI over a simulated machine. It is built with
//
//	go build -buildmode=c-shared -ldflags '-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1' -o libnvidia-ml.so.1 ./sim/libnvidiaml
//
// It finds the machine's root in GPUSIM_ROOT, which each first nvmlInit reads, or else from its own path: the root is
// the directory above usr/lib/x86_64-linux-gnu. So it works through any mount of the root, at any path.
// GPUSIM_VISIBLE lists the UUIDs of the GPUs that the process has, as a container has the device nodes of some; by default
// it has all.
//
// Traps. glibc binds a client's NVML calls to the first such library of the process, and a Go library is never
// unloaded. So a process that opens the libraries of two roots uses the first one's code; GPUSIM_ROOT then selects
// the machine. No call may end the host process, so each exported function recovers from panics, and returns "unknown
// error".
package main

//go:generate go run ./gen
