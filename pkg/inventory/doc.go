// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory reads from NVML and sysfs which GPUs a node has, and watches for changes.
//
// A scan opens an NVML session, reads and closes it: a session that stays open keeps the driver from being unloaded.
// A GPU that fails becomes a Problem of the Snapshot, and its neighbours are untouched. A node without a driver has
// the zero Snapshot, and an error that says why; nothing here stops the plugin.
//
// Traps. Two scans of unchanged hardware are equal, so what moves by itself (free memory, temperatures) has no place in
// a Snapshot. NVML cannot tell the address of a GPU that fell off the bus; the kernel's list under /proc can.
package inventory
