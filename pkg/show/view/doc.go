// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package view joins the API objects of a cluster into a picture of its GPUs. It says where they are, how they are cut
// and shared, and which claims and pods hold them.
//
// Traps. The objects come from separate requests, so a claim can hold a device that the slices do not show, and a pool
// can be incomplete. Other programs write slices with the driver's name, so names, counters and quantities can be
// malformed: such devices are counted in Node.Unreadable and are never an error.
package view
