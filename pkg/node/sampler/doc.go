// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sampler measures the node's GPUs and partitions, in the background.
//
// Readers of the Snapshot never wait for NVML. A GPU that hangs is missing from the Snapshot, and is not asked again
// before its call returns; other GPUs are measured as before.
//
// Traps. An open NVML session keeps the driver loaded, hides new GPUs from scans, and can make a GPU refuse another MIG
// mode. So a reading opens a session for a quarter of a second, only while GPUs are to be measured, and ends early for
// switches of MIG modes. Performance counters are averages of that time. NVML lists the processes that have a PID in
// the caller's PID namespace, with that PID.
package sampler
