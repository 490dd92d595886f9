// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology draws, for the documentation, how the simulator's boards are wired and which groups the driver makes of
// it. The pictures are made from the inventory's look at each board, and a test says when they have drifted.
package topology

//go:generate go test . -update
