// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package pack plans moves of pods that free GPUs: for a pod or a goal that waits, for a node, for the whole cluster.
// It also finds the pods of lower priority that a pod preempts.
//
// The scheduler's own allocator proves each step of a plan, with the devices as the earlier steps leave them. The pod's
// claims fit at the place that the plan names, and the goal fits at the end. The package only reads objects and never
// calls an API server. Traps: a proof covers devices, node selectors, taints, CPU and memory, and nothing else that
// keeps a pod from a node. Also, the scheduler can choose another node than the plan, so each move must be looked at
// before the next.
package pack
