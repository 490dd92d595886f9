// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package devicestate prepares and unprepares claims, and finds after any crash what it had been doing.
//
// The protocol. A claim is worked on under its own lock, then under the locks of the physical GPUs it takes for itself,
// in order; all hold across processes. Prepare: plan, refuse overlap, intent record (where an effect could be
// stranded), effects, CDI spec, commit record, answer. Unprepare: releasing record, spec removed, effects reverted in
// reverse, record removed. Whatever the moment of death, Recover finds a record that says what may exist.
//
// Traps. An answer before the commit promises what a crash forgets. A spec removed after the effects lets a container
// start on what is being taken apart. The notes in a GPU's lock file only say where to look: the records decide.
package devicestate
