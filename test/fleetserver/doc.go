// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleetserver simulates the API server of a cluster with thousands of nodes, over TLS on a loopback port. It
// serves their ResourceSlices and Nodes, and the objects that a controller writes.
//
// It encodes a node's slices once for each profile. A node's own copy is these bytes with its name and its boards'
// UUIDs, so that the server uses little processor time on the machine of the measured program. It ignores selectors,
// except for a name and the node of pods.
package fleetserver
