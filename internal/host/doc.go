// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package host is the border to the machine: durable files, locks that hold across processes, the clock and the boot ID.
//
// Every act that changes something is an Effect with a label, made of the system calls it takes. Production runs
// without a Tap; a test installs one that sees each effect before and after it happens, and makes it fail or ends the
// "process" there. So a crash can be had at exactly one place, and a test that lists labels knows that it met them all.
//
// Traps. A rename is durable only once its directory is synced. A temporary file has a fixed name beside its target, so
// whoever holds the target's lock owns it and the next write takes over what a crash left.
package host
