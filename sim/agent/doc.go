// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package agent keeps the simulated machine of a cluster's node as the labels of the node say.
//
// The machine outlives the agent: containers of other pods use it. The agent removes it if the node is to have none, or
// if the agent ends because its DaemonSet is deleted.
//
// Trap. The end of a pod says nothing about the DaemonSet: without an answer of the API server, the machine stays.
package agent
