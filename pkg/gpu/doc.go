// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package gpu defines the driver's basic types: a node's GPUs and the names of its devices.
//
// The values are plain data without handles, clocks or clients: two scans of unchanged hardware compare equal. Names
// and PCI addresses survive a reboot; indices and minor numbers may not.
package gpu
