// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package preempt evicts pods of lower priority for pods that wait for nothing but devices, as the scheduler itself
// does for CPU and memory.
//
// The leader runs it. Package pack chooses the victims and proves that the pod fits once they have left. Evictions go
// by the Eviction API. Traps: nothing holds freed devices for a pod, because a taint would keep it away too. The
// scheduler tries the pod of the highest priority first. A pod that lost its devices to another one waits a minute
// before others are evicted for it. The scheduler clears nominatedNodeName each time that it cannot place the pod.
package preempt
