// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package gpu holds the nouns of the driver: what a node's GPUs are and what they are called.
//
// Values here are plain: they carry no handle, clock or client, and two scans of the same hardware compare equal.
// Names and addresses are identities that survive a reboot; an index or a minor number never is.
package gpu
