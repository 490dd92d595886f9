// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package devicestate prepares and unprepares claims, and recovers them after a crash at any point.
//
// The protocol. Work on a claim holds the claim's lock, then the locks of its GPUs, in order; all work across
// processes. Prepare: plan, refuse overlap, write the intent record (if a crash could strand an effect), apply effects,
// write the CDI spec, write the commit record, answer. Unprepare: make the record an intent, remove the spec, revert
// effects in reverse, remove the record. After a crash at any point, Recover finds a record of all possible effects.
//
// Traps. An answer before the commit promises devices that a crash forgets. If the spec outlived the effects, a
// container could start on missing devices. The notes in a GPU's lock file are only hints: the records decide.
package devicestate
