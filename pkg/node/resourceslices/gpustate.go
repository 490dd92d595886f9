// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"maps"
	"slices"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/topology"
)

// gpuState is a GPU with its health, its held devices and its published devices.
type gpuState struct {
	gpu gpu.GPU
	// unhealthy has a State if the GPU is unavailable to new claims.
	unhealthy Condition
	// held are the held devices of the GPU: the whole, its monitor, its partitions and its groups.
	held []Held
	// entries are the devices to publish, without the monitor.
	entries []deviceEntry
	// partitionable means that the node publishes partitions of the GPU, now or once an object asks for them. beside
	// means that it publishes partitions or groups of any GPUs now.
	partitionable, beside bool
}

func (g gpuState) name() string { return gpu.NameOf(g.gpu.PCIAddress) }

// cut reports whether the GPU has counters of its own: it publishes partitions, or could, and the node has other
// counters. Cluster-autoscaler takes the mean over the counter sets of a node, and would ignore the GPUs without one.
func (g gpuState) cut() bool { return g.partitionable && g.beside || g.parted() }

// parted reports whether partitions of the GPU are published.
func (g gpuState) parted() bool {
	return slices.ContainsFunc(g.entries, func(e deviceEntry) bool { return e.device.Kind == gpu.KindMIG })
}

// heldAs returns the held devices of a kind without duplicates.
func (g gpuState) heldAs(kind gpu.Kind) []Held {
	var out []Held
	for _, h := range g.held {
		if h.Device.Kind == kind && !slices.ContainsFunc(out, func(o Held) bool { return o.Device == h.Device }) {
			out = append(out, h)
		}
	}
	return out
}

func (g gpuState) holds(kind gpu.Kind) bool { return len(g.heldAs(kind)) > 0 }

// gpuStates returns the readable GPUs and the held GPUs that are missing.
func (b *builder) gpuStates(s gpu.Snapshot, conditions map[string]Condition) []gpuState {
	found := map[string]*gpuState{}
	for _, g := range s.GPUs {
		if _, err := gpu.ParseName(gpu.NameOf(g.PCIAddress)); err != nil {
			b.warn("", Unreadable, "GPU %d (%s) is not published: %v", g.Index, g.UUID, err)
			continue
		}
		if other, ok := found[g.PCIAddress]; ok {
			// The address does not identify a GPU, so neither of the two can be allocated.
			other.unhealthy = Condition{State: Unreadable, Message: "two GPUs have this PCI address"}
			if cmp.Or(cmp.Compare(g.UUID, other.gpu.UUID), cmp.Compare(g.Index, other.gpu.Index)) < 0 {
				other.gpu = g
			}
			continue
		}
		found[g.PCIAddress] = &gpuState{gpu: g, unhealthy: conditions[g.PCIAddress]}
	}
	b.missing(s, found)
	// Single GPUs come first from those without a group, then from one group after the other.
	rank := topology.Rank(b.islands)
	var out []gpuState
	for _, g := range slices.SortedFunc(maps.Values(found), func(x, y *gpuState) int {
		return cmp.Or(cmp.Compare(rank[x.gpu.PCIAddress], rank[y.gpu.PCIAddress]),
			cmp.Compare(x.gpu.PCIAddress, y.gpu.PCIAddress))
	}) {
		g.entries, g.partitionable = b.entries(*g)
		out = append(out, *g)
	}
	if slices.ContainsFunc(out, gpuState.parted) {
		besideOthers(out)
	}
	return out
}

func besideOthers(gpus []gpuState) {
	for n := range gpus {
		gpus[n].beside = true
	}
}

// missing adds the held GPUs that were not read, and reports the problems of GPUs that no claim holds.
func (b *builder) missing(s gpu.Snapshot, found map[string]*gpuState) {
	problems := map[string]Condition{}
	for _, p := range s.Problems {
		c := Condition{State: Unreadable, Message: p.Message}
		if p.Lost {
			c.State = Lost
		}
		if p.PCIAddress == "" {
			b.warn("", c.State, "GPU %d is not published: %s", p.Index, p.Message)
			continue
		}
		problems[p.PCIAddress] = c
	}
	for _, h := range sorted(b.o.Held) {
		address := h.address()
		if _, err := gpu.ParseName(h.Device.Name()); err != nil {
			b.warn("", Absent, "a claim holds a device that cannot be named: %v", err)
			continue
		}
		if _, err := gpu.ParseName(gpu.NameOf(address)); err != nil {
			b.warn(h.Device.Name(), Absent, "a claim holds a group with a GPU that cannot be named: %v", err)
			continue
		}
		g, ok := found[address]
		if !ok {
			h.GPU.PCIAddress = address
			g = &gpuState{gpu: h.GPU,
				unhealthy: cmp.Or(problems[address], Condition{Absent, "the driver does not list it"})}
			found[address] = g
		}
		g.held = append(g.held, h)
	}
	for _, address := range sortedKeys(problems) {
		if _, ok := found[address]; !ok {
			b.warn(gpu.NameOf(address), problems[address].State, "GPU at %s is not published: %s", address,
				problems[address].Message)
		}
	}
}

func (h Held) address() string {
	if h.Device.Kind == gpu.KindGroup {
		return h.GPU.PCIAddress
	}
	return h.Device.PCIAddress
}

// sorted puts the more complete description of a GPU first, independent of the given order.
func sorted(held []Held) []Held {
	return slices.SortedFunc(slices.Values(held), func(x, y Held) int {
		return cmp.Or(cmp.Compare(x.address(), y.address()),
			cmp.Compare(len(y.GPU.ProductName), len(x.GPU.ProductName)),
			cmp.Compare(y.GPU.UUID, x.GPU.UUID), cmp.Compare(x.Device.Name(), y.Device.Name()),
			cmp.Compare(y.Size, x.Size), cmp.Compare(y.MemoryBytes, x.MemoryBytes))
	})
}
