// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package host is the border to the machine: durable files, locks that hold across processes, the clock and the boot ID.
//
// Every system call that changes the machine is an Operation with a label. Production has no FaultHook. A test's hook
// runs each operation: it can make one operation fail, or end the simulated process before or after it (see hosttest).
//
// Traps. A rename is durable only once its directory is synced. A temporary file has a fixed name beside its target. The
// holder of the target's lock owns the temporary file, and the next write overwrites the file that a crash left.
package host
