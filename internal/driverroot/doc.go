// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package driverroot reads from a driver's files what a container needs to use a GPU: device nodes, libraries, hooks.
//
// It asks nvidia-container-toolkit's nvcdi, of which it is the only importer, and the kernel's files under /proc. NVML
// is not asked, so that preparing a claim holds no /dev/nvidiactl open.
//
// Traps. The plugin sees the driver under other paths than the container runtime does; edits hold the runtime's. nvcdi
// only warns where a file is missing, and would give a container that sees no GPU: what must be there is checked here.
// Answers are kept for as long as the files they came from look the same, so an upgraded driver is noticed at once.
package driverroot
