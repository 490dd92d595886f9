// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

// The reasons of Events with this package's answers; docs/reference/events.md is generated from these comments.
const (
	// EventReason: the pod has waited for devices for more than 20 s, or the API server refuses the pods of the object.
	// The message names the cause and changes that help; `kubectl gpu why` shows more.
	EventReason = "WaitsForGPUs"
	// LacksReason: the pod has a node, and no device for a resource such as nvidia.com/gpu, because it was bound
	// without a claim. Remove spec.nodeName, or let kube-scheduler place the pod, and create it again.
	LacksReason = "RunsWithoutGPUs"
)
