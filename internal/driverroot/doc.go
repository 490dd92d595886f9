// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package driverroot reads from a driver's files the container edits of a GPU: device nodes, libraries, hooks.
//
// It is the only importer of nvidia-container-toolkit's nvcdi, and also reads the kernel's files under /proc. It does
// not call NVML, so that preparing a claim does not hold /dev/nvidiactl open.
//
// Traps. The plugin and the container runtime see the driver under different paths; edits contain the runtime's
// paths. nvcdi only warns about a missing file, and the container would then see no GPU: this package checks the
// required files. Results are cached until their source files change, so a driver upgrade takes effect at once.
package driverroot
