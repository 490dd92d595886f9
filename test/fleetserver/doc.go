// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleetserver serves a cluster of thousands of nodes that does not exist: their ResourceSlices, Nodes and whatever
// a controller writes, as an API server would, over TLS on a loopback port.
//
// What a node publishes is encoded once for each profile; a node's own copy is these bytes with its name and the UUIDs of
// its boards put in, so that a server beside the program under test takes little of the machine. Selectors are not looked
// at, but for a name: what is stored is what the program asks for.
package fleetserver
