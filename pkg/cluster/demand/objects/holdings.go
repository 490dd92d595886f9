// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/demand"
)

// Holdings counts the devices of nodes that claims hold, so that a pass over them does not depend on the number of
// claims. The zero Holdings is empty.
type Holdings struct {
	nodes map[string]*Held
	// changes counts the changes of all nodes.
	changes int
}

// Held has the devices of a node that claims hold.
type Held struct {
	// devices counts the claims of each device, shared the shares of it, and what the partitions of each profile, the
	// groups and the shares.
	devices, shared map[gpu.Device]int
	what            map[string]int
	// changed is the number of the last change.
	changed int
}

// Replace removes what the earlier version of a claim held, and adds what the later one holds. Either can be nil.
func (h *Holdings) Replace(was, is any, driver string) {
	before, after := results(was), results(is)
	if slices.EqualFunc(before, after, func(a, b resourceapi.DeviceRequestAllocationResult) bool {
		return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device && ptr.Equal(a.ShareID, b.ShareID)
	}) {
		return
	}
	h.add(before, driver, -1)
	h.add(after, driver, 1)
}

// results returns the allocated devices of a claim.
func results(object any) []resourceapi.DeviceRequestAllocationResult {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok || claim == nil || claim.Status.Allocation == nil {
		return nil
	}
	return claim.Status.Allocation.Devices.Results
}

// holds returns the allocated device of this driver, and what it counts for: a profile, demand.Groups, demand.Monitors
// or demand.Shares. Another driver's counts for nothing.
func holds(r resourceapi.DeviceRequestAllocationResult, driver string) (device gpu.Device, what []string) {
	device, err := gpu.ParseName(r.Device)
	if r.Driver != driver || err != nil {
		return gpu.Device{}, nil
	}
	switch device.Kind {
	case gpu.KindMonitor:
		return device, []string{demand.Monitors}
	case gpu.KindGroup:
		what = append(what, demand.Groups)
	case gpu.KindMIG:
		what = append(what, device.Profile)
	}
	if r.ShareID != nil {
		what = append(what, demand.Shares)
	}
	return device, what
}

func (h *Holdings) add(results []resourceapi.DeviceRequestAllocationResult, driver string, n int) {
	for _, r := range results {
		device, held := holds(r, driver)
		if device.Kind == "" || device.Kind == gpu.KindMonitor || ptr.Deref(r.AdminAccess, false) {
			continue // Others can have the device too.
		}
		if h.nodes == nil {
			h.nodes = map[string]*Held{}
		}
		node := wire.NodeOf(r.Pool)
		of := h.nodes[node]
		if of == nil {
			of = &Held{devices: map[gpu.Device]int{}, shared: map[gpu.Device]int{}, what: map[string]int{}}
			h.nodes[node] = of
		}
		h.changes++
		of.changed = h.changes
		count(of.devices, device, n)
		if r.ShareID != nil {
			count(of.shared, device, n)
		}
		for _, what := range held {
			count(of.what, what, n)
		}
		if len(of.devices) == 0 {
			delete(h.nodes, node)
		}
	}
}

func count[K comparable](in map[K]int, key K, n int) {
	if in[key] += n; in[key] == 0 {
		delete(in, key)
	}
}

// Of returns what claims hold of a node; nil if nothing.
func (h *Holdings) Of(node string) *Held { return h.nodes[node] }

// Holders returns the nodes of which a claim holds a partition of the profile, a group for demand.Groups, or a device
// of which it has a share for demand.Shares. That can be all of the device: each claim of a shareable device has a
// share.
func (h *Holdings) Holders(what string) (out []string) {
	for node, of := range h.nodes {
		if of.what[what] != 0 {
			out = append(out, node)
		}
	}
	return out
}

// Changed is a number that is another one after each change of the claims on the node.
func (h *Held) Changed() int {
	if h == nil {
		return 0
	}
	return h.changed
}

// Mark says of GPUs what claims hold of them. members are the PCI addresses of the GPUs of groups.
func (h *Held) Mark(gpus []demand.GPU, members map[gpu.Device][]string) {
	if h == nil {
		return
	}
	whole, part := map[string]bool{}, map[string]bool{}
	for d := range h.devices {
		switch d.Kind {
		case gpu.KindGPU:
			whole[d.PCIAddress], part[d.PCIAddress] = true, part[d.PCIAddress] || h.shared[d] > 0
		case gpu.KindGroup:
			for _, address := range members[d] {
				whole[address] = true
			}
		default:
			part[d.PCIAddress] = true
		}
	}
	for i := range gpus {
		g := &gpus[i]
		g.Whole, g.Part = whole[g.Address], part[g.Address]
	}
}
