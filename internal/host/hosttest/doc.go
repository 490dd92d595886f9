// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosttest makes the operations of a simulated process fail, or ends the process at one of them.
//
// Faults counts operations and injects a fault into one. Run calls a function until the simulated crash. Gate stops a
// process at an operation. Disk models a power cut. Each of them is a host.FaultHook or has one.
package hosttest
