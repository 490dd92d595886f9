// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

// Cluster holds the objects to judge by. It is only read.
type Cluster struct {
	// Nodes is nil if nodes cannot be read: then each node of a slice counts, without labels and taints.
	Nodes []*corev1.Node
	// Slices has the slices of all drivers.
	Slices    []*pool.Slice
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
	Classes   []*resourceapi.DeviceClass
	Rules     []*resourceapi.DeviceTaintRule
	// Events are about the pod in question.
	Events []*corev1.Event
	// ServerVersion is the API server's version, such as v1.36.1; without a cluster it is empty. ServerVersionError
	// says why it could not be read.
	ServerVersion      string
	ServerVersionError error
	// States say which objects could not be read, for example without the right. An answer then does not take them for
	// absent.
	read.States
}

// Options configure an Ask.
type Options struct {
	// Driver is the name of the driver whose names and parameters are explained.
	Driver string
	// Limit is the time for the questions to the allocator; 0 means DefaultLimit.
	Limit time.Duration
	// Devices adds the obstacles of each device to the answer.
	Devices bool
	// Reader is the namespace whose users read the answer. Claims of other namespaces are counted, not named. Empty:
	// all claims are named.
	Reader string
	// New means that the subject is of a file: what the webhook denies is refused.
	New bool
	// Brief searches for cures on few kinds of nodes.
	Brief bool
	// Now is the time for ages.
	Now time.Time
}

// DefaultLimit is the time for the questions to the allocator.
const DefaultLimit = 5 * time.Second
