// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// Node is a node that publishes devices of the driver, or one with allocated devices that it does not publish.
type Node struct {
	Name string `json:"name"`
	GPUs []GPU  `json:"gpus"`
	// Groups are the NVLink groups that claims hold.
	Groups []Group `json:"groups,omitempty"`
	// Closed says why the node takes no pod, or is empty: "node not ready" or "node cordoned".
	Closed string `json:"closed,omitempty"`
	// Incomplete means that slices of the pool's newest generation are missing, as during an update.
	Incomplete bool `json:"incomplete,omitempty"`
	// Unreadable is the number of published devices whose names or counters do not follow the driver's form.
	Unreadable int `json:"unreadable,omitempty"`
}

// published counts the GPUs in slices.
func (n Node) published() (sum int) {
	for _, g := range n.GPUs {
		if len(g.Devices) > 0 {
			sum++
		}
	}
	return sum
}

// held counts the GPUs that claims have.
func (n Node) held() (sum int) {
	for _, g := range n.GPUs {
		if len(g.Holders()) > 0 {
			sum++
		}
	}
	return sum
}

// GPU is a board, whether it is published as a whole or only as partitions.
type GPU struct {
	// Name is the name of the whole GPU's device.
	Name       string `json:"name"`
	Node       string `json:"node"`
	PCIAddress string `json:"pciAddress"`
	UUID       string `json:"uuid,omitempty"`
	Product    string `json:"product,omitempty"`
	// MemoryBytes is 0 if the node does not publish it.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// MemorySlices is 0 for a GPU without MIG. FreeSlices have no holder; the largest free device can use UsableSlices.
	MemorySlices int `json:"memorySlices,omitempty"`
	FreeSlices   int `json:"freeSlices,omitempty"`
	UsableSlices int `json:"usableSlices,omitempty"`
	Use          Use `json:"use"`
	// Health is the unhealthy taint's value, or empty.
	Health string `json:"health,omitempty"`
	// Taints come from a cordon and from DeviceTaintRules.
	Taints []resourceapi.DeviceTaint `json:"taints,omitempty"`
	// Incomplete means that slices of its node are missing, so that no claim gets a device there.
	Incomplete bool `json:"incomplete,omitempty"`
	// Closed is the node's.
	Closed string `json:"closed,omitempty"`
	// Rules are the names of the DeviceTaintRules that taint the GPU.
	Rules []string `json:"-"`
	// Allocations are sorted by their place on the GPU. Devices of admin access come last.
	Allocations []Allocation `json:"allocations,omitempty"`
	// Devices are all published devices that need this GPU, groups included, sorted by name.
	Devices []PublishedDevice `json:"-"`
}

// PublishedDevice is a device in the slices.
type PublishedDevice struct {
	Pool, Name string
	// Cordon is the effect of its taint of a cordon, or empty.
	Cordon resourceapi.DeviceTaintEffect
}

// Use says how claims use a GPU.
type Use string

// The uses. A GPU with several has the first of them that applies, in this order.
const (
	// Unpublished GPUs are allocated, but in no slice.
	Unpublished Use = "unpublished"
	// unread GPUs are allocated, and the slices were not read.
	unread Use = "unread"
	// Grouped GPUs belong to an NVLink group that a claim holds.
	grouped Use = "group"
	// Cut GPUs have partitions that claims hold.
	Cut Use = "cut"
	// Shared GPUs have shares that claims hold.
	shared Use = "shared"
	// Whole GPUs belong to one claim.
	Whole Use = "whole"
	// External GPUs have partitions that no claim holds.
	external Use = "external"
	// Free GPUs have no holder.
	Free Use = "free"
)

// Allocation is a device or a share of a device that a claim holds.
type Allocation struct {
	Device string   `json:"device"`
	Kind   gpu.Kind `json:"kind"`
	// Profile, Start and Size describe a partition, in memory slices.
	Profile string `json:"profile,omitempty"`
	Start   int    `json:"start,omitempty"`
	Size    int    `json:"size,omitempty"`
	// ShareBytes and Compute are the consumed capacity of a share: bytes, and percent of the multiprocessors.
	ShareBytes int64 `json:"shareBytes,omitempty"`
	Compute    int64 `json:"compute,omitempty"`
	// Share is the ID of a share, empty for a device that only one claim can hold.
	Share string   `json:"share,omitempty"`
	Claim ClaimRef `json:"claim"`
	// Pods are those for which the claim is reserved. A PodGroup stands for its pods, as podgroup/NAME.
	Pods []string `json:"pods,omitempty"`
	// Admin access uses the device beside its holders.
	Admin bool `json:"admin,omitempty"`
}

// ClaimRef names a claim.
type ClaimRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (c ClaimRef) String() string { return c.Namespace + "/" + c.Name }

func (c ClaimRef) compare(o ClaimRef) int {
	return cmp.Or(cmp.Compare(c.Namespace, o.Namespace), cmp.Compare(c.Name, o.Name))
}

// Group is an allocated NVLink group.
type Group struct {
	Device string `json:"device"`
	// Members are the names of the GPUs, sorted.
	Members []string `json:"members"`
	Claim   ClaimRef `json:"claim"`
}

// Available reports whether new claims can get the whole GPU: it has no holder, no fault and no taint. All slices of
// its node are there, and the node takes pods. Counts of free GPUs count these.
func (g GPU) Available() bool { return g.Use == Free && g.Condition() == "ok" }

// Holders returns the claims with access to the GPU, each once.
func (g GPU) Holders() []string {
	var out []string
	for _, a := range g.Allocations {
		if name := a.Claim.String(); !a.Admin && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Fragmentation is the share of the free memory slices that the largest free device cannot use, 0 to 1. It is 0 for a
// GPU that is closed to new claims.
func (g GPU) Fragmentation() float64 {
	if g.FreeSlices == 0 || g.Condition() != "ok" {
		return 0
	}
	return 1 - float64(min(g.UsableSlices, g.FreeSlices))/float64(g.FreeSlices)
}

// FreeBytes is the memory that no claim holds. A GPU with a fault or a taint has none for new claims.
func (g GPU) FreeBytes() int64 {
	free := int64(0)
	switch {
	case g.Condition() != "ok":
	case g.Use == Free:
		free = g.MemoryBytes
	case g.Use == Cut && g.MemorySlices > 0:
		free = g.MemoryBytes * int64(g.FreeSlices) / int64(g.MemorySlices)
	case g.Use == shared:
		free = g.MemoryBytes
		for _, a := range g.Allocations {
			free -= a.ShareBytes
		}
	}
	return max(free, 0)
}

// Summary is the use in words: "free", "whole", "2 shares", "3 partitions", "group". Claims that share a partition do
// not count it twice.
func (g GPU) Summary() string {
	n, seen := 0, map[string]bool{}
	for _, a := range g.Allocations {
		if a.Admin || g.Use == Cut && seen[a.Device] {
			continue
		}
		seen[a.Device] = true
		n++
	}
	switch {
	case g.Use == shared && n == 1:
		return "1 share"
	case g.Use == shared:
		return fmt.Sprintf("%d shares", n)
	case g.Use == Cut && n == 1:
		return "1 partition"
	case g.Use == Cut:
		return fmt.Sprintf("%d partitions", n)
	}
	return string(g.Use)
}

// Condition is the health and the taints in words, or "ok". It is "unknown" for a GPU that is in no slice
// itself, although one of its NVLink groups can be. Where slices are missing, it ends with them.
func (g GPU) Condition() string {
	var out []string
	if g.Health != "" {
		out = append(out, g.Health)
	}
	for _, t := range g.Taints {
		if word := t.Key + ":" + string(t.Effect); t.Key == wire.CordonTaint &&
			t.Effect == resourceapi.DeviceTaintEffectNoExecute {
			out = append(out, "drained")
		} else if t.Key == wire.CordonTaint {
			out = append(out, "cordoned")
		} else if t.Key == wire.ReservedTaint {
			out = append(out, "reserved")
		} else {
			out = append(out, word)
		}
	}
	if g.Incomplete {
		out = append(out, slicesMissing)
	}
	if g.Closed != "" {
		out = append(out, g.Closed)
	}
	if len(out) == 0 && !slices.ContainsFunc(g.Devices, func(d PublishedDevice) bool {
		return strings.HasPrefix(d.Name, g.Name)
	}) {
		return "unknown"
	}
	return cmp.Or(strings.Join(out, ", "), "ok")
}
