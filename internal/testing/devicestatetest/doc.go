// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package devicestatetest simulates a machine on which plugin processes start, prepare claims, crash and reboot.
//
// New creates a machine with four GPUs of a fixed Snapshot, whose steps write files. NewSimulated creates one with
// simulated GPUs and the executors of MIG partitions, MPS and time slices. CheckClean checks both kinds.
package devicestatetest
