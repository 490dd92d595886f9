// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package why explains whether the scheduler can allocate the claims of a pod, and which change would let it.
//
// The scheduler's own allocator decides, for one node of each shape, with the objects of the cluster as they are. If it
// says no, it is asked again with one thing relaxed: a claim gone, a taint tolerated, a selector dropped. Each relaxation
// that turns no into yes is a cure, so reasons and cures are true as far as the given objects are. The package only reads
// objects and never calls an API server. Trap: the allocator takes long if it must try many combinations; each question
// has a time limit, and the answer says where it is undecided.
package why

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/pool"
)

// Cluster holds the objects to judge by. It is only read.
type Cluster struct {
	// Nodes is nil if nodes cannot be read: then each node of a slice counts, without labels and taints.
	Nodes []*corev1.Node
	// Slices are those of all drivers.
	Slices    []*pool.Slice
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
	Classes   []*resourceapi.DeviceClass
	Rules     []*resourceapi.DeviceTaintRule
	// Events are those of the pod in question.
	Events []*corev1.Event
}

// Options configure an Ask.
type Options struct {
	// Driver is the name of the driver whose names and parameters are explained.
	Driver string
	// Limit is the time for the questions to the allocator; 0 means DefaultLimit.
	Limit time.Duration
	// Devices adds the obstacles of each device to the answer.
	Devices bool
	// Now is the time for ages.
	Now time.Time
}

// DefaultLimit is the time for the questions to the allocator.
const DefaultLimit = 5 * time.Second
