// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology draws, for the documentation, the links of the simulator's boards and the driver's groups. The
// pictures come from the inventory's scan of each board, and a test detects outdated ones.
package topology

//go:generate go test . -update
