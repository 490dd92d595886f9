// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosttest makes the operations of a simulated process fail, or ends the process at one of them.
//
// Faults counts operations and strikes at one. Run calls a function until the simulated crash. Gate holds a process at an
// operation. Disk knows which files survive a power cut. All of them are, or have, a host.FaultHook.
package hosttest
