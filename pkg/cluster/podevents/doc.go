// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package podevents writes why a pod waits for devices, as one Event on the pod, and that a pod with a node has none.
//
// The leader asks package why about pods that wait for longer than Patience. Pods that differ only in their names are
// asked about once. A pause in proportion to its processor time follows each answer, and namespaces take turns. So
// neither the size of a cluster nor one tenant makes the work grow: answers become older instead. Owners whose pods the
// API server refuses have an Event too. Trap: users of a namespace read its Events, so they name no object of other
// namespaces.
package podevents
