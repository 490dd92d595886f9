// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"slices"

	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
)

// interconnect holds the NVLink connections among a node's GPUs.
type interconnect struct {
	// order lists PCI addresses by NUMA node, PCIe root, bridges and address: near GPUs are neighbours in it.
	order []string
	// models are product names, by address.
	models map[string]string
	// links counts the direct links between two addresses, once for both directions.
	links map[[2]string]int
	// switched are the GPUs that reach each other through switches.
	switched map[string]bool
	// notPeers are the pairs without peer-to-peer access according to NVML.
	notPeers map[[2]string]bool
}

func newInterconnect(gpus []gpu.GPU) interconnect {
	w := interconnect{models: map[string]string{}, links: map[[2]string]int{}, switched: map[string]bool{},
		notPeers: map[[2]string]bool{}}
	gpus = slices.Clone(gpus)
	slices.SortFunc(gpus, func(a, b gpu.GPU) int {
		return cmp.Or(cmp.Compare(ptr.Deref(a.NUMANode, -1), ptr.Deref(b.NUMANode, -1)),
			cmp.Compare(a.PCIeRoot, b.PCIeRoot), slices.Compare(a.Bridges, b.Bridges),
			cmp.Compare(a.PCIAddress, b.PCIAddress), cmp.Compare(a.UUID, b.UUID))
	})
	reported := map[[2]string]int{}
	toSwitch := map[string]int{} // by address
	maxLinks := map[string]int{} // by model
	for _, g := range gpus {
		if slices.Contains(w.order, g.PCIAddress) {
			continue // The address does not identify a GPU.
		}
		w.order = append(w.order, g.PCIAddress)
		w.models[g.PCIAddress] = g.ProductName
		for _, l := range g.Links {
			switch {
			case l.Peer == gpu.PeerSwitch && g.Fabric.State != gpu.FabricPending && g.Fabric.State != gpu.FabricFailed:
				toSwitch[g.PCIAddress]++
			case l.Peer == gpu.PeerGPU && l.PeerAddress != g.PCIAddress:
				reported[[2]string{g.PCIAddress, l.PeerAddress}]++
			}
		}
		maxLinks[g.ProductName] = max(maxLinks[g.ProductName], toSwitch[g.PCIAddress])
		for _, other := range g.Unreachable {
			w.notPeers[[2]string{g.PCIAddress, other}], w.notPeers[[2]string{other, g.PCIAddress}] = true, true
		}
	}
	for address, n := range toSwitch {
		w.switched[address] = n == maxLinks[w.models[address]]
	}
	for ends, n := range reported {
		// Both ends must report it.
		if n = min(n, reported[[2]string{ends[1], ends[0]}]); n > 0 && !w.notPeers[ends] {
			w.links[ends] = n
		}
	}
	return w
}

// between counts the direct links of two GPUs.
func (w interconnect) between(a, b string) int { return w.links[[2]string{a, b}] }

// connected reports whether two GPUs reach each other over NVLink, directly or through switches.
func (w interconnect) connected(a, b string) bool {
	return w.between(a, b) > 0 || w.switched[a] && w.switched[b] && !w.notPeers[[2]string{a, b}]
}

// components returns the sets of GPUs that are connected over any number of steps, each set in w.order.
func (w interconnect) components() [][]string {
	var out [][]string
	seen := map[string]bool{}
	for _, first := range w.order {
		if seen[first] {
			continue
		}
		seen[first] = true
		reached := []string{first}
		for n := 0; n < len(reached); n++ {
			for _, next := range w.order {
				if !seen[next] && w.connected(reached[n], next) {
					seen[next] = true
					reached = append(reached, next)
				}
			}
		}
		out = append(out,
			slices.DeleteFunc(slices.Clone(w.order), func(m string) bool { return !slices.Contains(reached, m) }))
	}
	return out
}

// aligned cuts a switched island into groups of 2, 4, 8, … GPUs. It aligns them with the positions of the model's GPUs
// on the node. Thus groups follow NUMA nodes and PCIe roots, and a failed GPU does not move the other groups.
func (w interconnect) aligned(members []string) []Group {
	places := slices.DeleteFunc(slices.Clone(w.order), func(a string) bool {
		return w.models[a] != w.models[members[0]]
	})
	var out []Group
	for size := 2; size <= len(places); size *= 2 {
		for at := 0; at+size <= len(places); at += size {
			if group := places[at : at+size]; w.complete(members, group) {
				out = append(out, Group{Members: slices.Clone(group)})
			}
		}
	}
	return out
}

// complete reports whether all GPUs of a group are members and each pair of them is connected.
func (w interconnect) complete(members, group []string) bool {
	for i, a := range group {
		if !slices.Contains(members, a) {
			return false
		}
		for _, b := range group[:i] {
			if !w.connected(a, b) {
				return false
			}
		}
	}
	return true
}
