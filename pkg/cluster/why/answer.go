// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/ask"
)

// Result is the answer in one word.
type Result string

// The results.
const (
	// Settled means that there is nothing left to allocate.
	Settled Result = "settled"
	// Fits means that the allocator finds devices on a node that the pod can use, and nothing shows that the scheduler
	// does not take them.
	Fits Result = "fits"
	// Free means that devices are free on such a node, but the scheduler has other reasons, or shows no sign of life.
	Free Result = "free"
	// Refused means that an API server or the driver's webhook refuses an object of a file.
	Refused Result = "refused"
	// Waits means that no node can allocate the claims, or that the scheduler does not try.
	Waits Result = "waits"
	// Undecided means that the time was up before a node was found, or that objects could not be read.
	Undecided Result = "undecided"
	// Lacks means that the pod has a node, and no device for an extended resource. It does not get one later.
	Lacks Result = "lacks"
)

// Answer explains a subject.
type Answer struct {
	Subject string `json:"subject"`
	Result  Result `json:"result"`
	Summary string `json:"summary"`
	// JudgedBy names the versions of the allocator and of the API server. It is empty if neither was asked.
	JudgedBy string `json:"judgedBy,omitempty"`
	// Fits are the nodes that can allocate the claims now.
	Fits []string `json:"fits,omitempty"`
	// Reasons say why other nodes cannot, or what comes before the devices.
	Reasons []Reason `json:"reasons,omitempty"`
	// GPUs counts the GPUs of the nodes with the reason CauseHeld. Claims have all or a part of HeldGPUs of them.
	GPUs     int `json:"gpus,omitempty"`
	HeldGPUs int `json:"heldGPUs,omitempty"`
	// Cures are the smallest changes after which a node can; the smallest is first.
	Cures []Cure `json:"cures,omitempty"`
	// Change says how the subject gets other claims, if a cure changes them.
	Change string `json:"change,omitempty"`
	// Notes are remarks about the objects, such as parameters that Prepare refuses.
	Notes []string `json:"notes,omitempty"`
	// Devices are the obstacles of the devices of one node of each shape, if asked for.
	Devices []ask.Obstacle `json:"devices,omitempty"`

	// Placed are the claims with the devices that they get, of a pod of a file that fits.
	Placed []*resourceapi.ResourceClaim `json:"-"`
}

// Reason is why some nodes cannot allocate the claims.
type Reason struct {
	Text  string   `json:"text"`
	Nodes []string `json:"nodes,omitempty"`
}
