// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"

	"gpu-dra-driver/internal/nvml"
)

// Distances between two GPUs over PCIe, with the values of nvml.h.
const (
	Internal   = 0
	Single     = 10
	Multiple   = 20
	HostBridge = 30
	Node       = 40
	System     = 50
)

// CommonAncestor returns the distance of two GPUs.
func CommonAncestor(a, b View) int {
	sa, sb := a.State.Slot(a.GPU), b.State.Slot(b.GPU)
	common := 0
	for common < min(len(sa.Path), len(sb.Path)) && sa.Path[common] == sb.Path[common] {
		common++
	}
	switch {
	case a.Slot == b.Slot:
		return Internal
	case common > 1 && common == len(sa.Path) && common == len(sb.Path):
		return Single
	case common > 1:
		return Multiple
	case common == 1:
		return HostBridge
	case sa.NUMANode == sb.NUMANode:
		return Node
	}
	return System
}

// cpusPerNode is the size of a NUMA node's CPU set in every simulated machine.
const cpusPerNode = 16

// CPUs returns the first and last CPU of a NUMA node, or of node 0 for a GPU without a node.
func CPUs(node int) (first, last int) {
	first = max(node, 0) * cpusPerNode
	return first, first + cpusPerNode - 1
}

// Peer returns the second GPU of a query, whose own faults do not apply.
func (s *Session) Peer(slot int) (View, nvml.Code) {
	st, code := s.state()
	if code != 0 {
		return View{}, code
	}
	index := slices.Index(s.slots, slot)
	if index < 0 || slot >= len(st.GPUs) {
		return View{}, nvml.InvalidArgument
	}
	g := &st.GPUs[slot]
	if g.Lost || g.OffBus {
		return View{}, nvml.GPUIsLost
	}
	return View{State: st, GPU: g, Board: st.Profile.Board, Slot: slot, Index: index}, 0
}
