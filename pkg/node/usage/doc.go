// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package usage adds up how long the GPUs of a node are allocated, free, unhealthy and blocked, and how much of them
// each claim has had.
//
// The seconds of a GPU's states add up to the time since the GPU was first seen, except for the time between a reboot
// and the plugin's start. Times are those since the node's boot, so that changes of the clock do not matter.
//
// Traps. A claim is charged once, however many pods have it. Only the plugin prepares and unprepares claims, so the
// claims that it finds at its start have been held since its last run ended.
package usage
