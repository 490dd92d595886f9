// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build noschedulerfault

package schedulerfault

var faults, unknown []Fault
