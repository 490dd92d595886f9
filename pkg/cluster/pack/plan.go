// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/cluster/why"
)

// Cluster holds the objects to plan with. It is only read.
type Cluster struct {
	why.Cluster
	// Only if Pods are complete, the free CPU and memory of nodes are known.
	Pods    []*corev1.Pod
	Budgets []*policyv1.PodDisruptionBudget
	// Use is the measured utilization of pods' devices, 0 to 1. A pod that is not in it was not measured.
	Use map[types.NamespacedName]float64
}

// Options configure a planner.
type Options struct {
	// Driver is the name of the driver whose GPUs are freed.
	Driver string
	// Limit is the time for the search; 0 means DefaultLimit.
	Limit time.Duration
	// Shared also moves pods with a claim that several pods use or that is named by the pod's author. The other fields
	// also move pods that no controller creates again, pods of Jobs, and pods with a constraint that the planner does
	// not know.
	Shared, Unmanaged, Jobs, Unchecked bool
	// Held are GPUs that are reserved for the pod. For it they count as not reserved.
	Held []GPU

	// preempt has the rules of a preemption; nil for moves.
	preempt *preemption
}

// DefaultLimit is the time for a search.
const DefaultLimit = 20 * time.Second

// GPU names a GPU of a node.
type GPU struct {
	Node string `json:"node"`
	Name string `json:"name"`
}

func (g GPU) String() string { return g.Node + "/" + g.Name }

// Goal is the demand for which GPUs are freed.
type Goal struct {
	Text   string
	Claims []*resourceapi.ResourceClaim
	// Class is a class that the cluster lacks and the claims name, or nil.
	Class *resourceapi.DeviceClass
	// Pod waits for the claims, or is nil.
	Pod *corev1.Pod
	// Needs are the pod's.
	Needs why.Needs
}

// Place is a node, and the devices of a unit or of the goal there.
type Place struct {
	Node    string   `json:"node"`
	Devices []string `json:"devices"`
}

// Move is one step: the pods are evicted, and come back with devices elsewhere.
type Move struct {
	// Pods and Claims are namespace/name. There are several pods only if they share a claim.
	Pods   []string `json:"pods"`
	Claims []string `json:"claims"`
	From   Place    `json:"from"`
	To     Place    `json:"to"`
	// Bytes is the memory of the devices, or of the shares.
	Bytes int64 `json:"memoryBytes,omitempty"`
	// Utilization is the measured mean of the pods, 0 to 1, or nil if it was not measured.
	Utilization *float64 `json:"utilization,omitempty"`
	// Budgets are the disruption budgets that count the pods, as namespace/name.
	Budgets []string `json:"budgets,omitempty"`
	// Notes are effects of the eviction beyond a restart, and constraints that were not looked at.
	Notes []string `json:"notes,omitempty"`

	unit   *unit
	placed []*resourceapi.ResourceClaim
}

// Result is the answer in one word.
type Result string

// The results.
const (
	// Fits means that nothing needs to move.
	Fits Result = "fits"
	// Moves means that the plan's moves suffice.
	Moves Result = "moves"
	// Blocked means that no moves were found, or too few for an empty node.
	Blocked Result = "blocked"
)

// Plan is an answer.
type Plan struct {
	// Goal is empty for a node to empty, which Node names.
	Goal   string `json:"goal,omitempty"`
	Node   string `json:"node,omitempty"`
	Result Result `json:"result"`
	Moves  []Move `json:"moves,omitempty"`
	// Place has the devices of the goal after the moves. It is nil without a goal.
	Place *Place `json:"place,omitempty"`
	// Hold are the GPUs to keep newcomers from while the moves are made.
	Hold []GPU `json:"hold,omitempty"`
	// Won are the GPUs that are free only after the moves.
	Won []GPU `json:"won,omitempty"`
	// Free counts GPUs without a holder, before and after the moves.
	Free [2]int `json:"free"`
	// Blockers say which pods cannot move, and why.
	Blockers []string `json:"blockers,omitempty"`
	Notes    []string `json:"notes,omitempty"`
}
