// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// interconnect is who is connected to whom.
type interconnect struct {
	// order is NUMA node, PCIe root and bridges, PCI address: GPUs that are close stand together.
	order []string
	// models are their product names.
	models map[string]string
	// links counts those between two GPUs, by their addresses, each once for both directions.
	links map[[2]string]int
	// switched are the GPUs that reach each other through switches.
	switched map[string]bool
	// apart are the pairs that NVML says are no peers.
	apart map[[2]string]bool
}

func newInterconnect(gpus []gpu.GPU) interconnect {
	w := interconnect{models: map[string]string{}, links: map[[2]string]int{}, switched: map[string]bool{}, apart: map[[2]string]bool{}}
	gpus = slices.Clone(gpus)
	slices.SortFunc(gpus, func(a, b gpu.GPU) int {
		return cmp.Or(cmp.Compare(numa(a), numa(b)), cmp.Compare(a.PCIeRoot, b.PCIeRoot), slices.Compare(a.Bridges, b.Bridges),
			cmp.Compare(a.PCIAddress, b.PCIAddress), cmp.Compare(a.UUID, b.UUID))
	})
	said := map[[2]string]int{}
	toSwitch := map[string]int{} // by address
	most := map[string]int{}     // by model
	for _, g := range gpus {
		if slices.Contains(w.order, g.PCIAddress) {
			continue // Which of two GPUs of one address it is cannot be told.
		}
		w.order = append(w.order, g.PCIAddress)
		w.models[g.PCIAddress] = g.ProductName
		for _, l := range g.Links {
			switch {
			case l.Peer == gpu.PeerSwitch && g.Fabric.State != gpu.FabricPending && g.Fabric.State != gpu.FabricFailed:
				toSwitch[g.PCIAddress]++
			case l.Peer == gpu.PeerGPU && l.PeerAddress != g.PCIAddress:
				said[[2]string{g.PCIAddress, l.PeerAddress}]++
			}
		}
		most[g.ProductName] = max(most[g.ProductName], toSwitch[g.PCIAddress])
		for _, other := range g.Unreachable {
			w.apart[[2]string{g.PCIAddress, other}], w.apart[[2]string{other, g.PCIAddress}] = true, true
		}
	}
	for address, n := range toSwitch {
		w.switched[address] = n == most[w.models[address]]
	}
	for ends, n := range said {
		// Both ends must report it.
		if n = min(n, said[[2]string{ends[1], ends[0]}]); n > 0 {
			w.links[ends] = n
		}
	}
	return w
}

func numa(g gpu.GPU) int {
	if g.NUMANode == nil {
		return -1
	}
	return *g.NUMANode
}

// between is how many links connect two GPUs directly.
func (w interconnect) between(a, b string) int {
	if w.apart[[2]string{a, b}] {
		return 0
	}
	return w.links[[2]string{a, b}]
}

// connected says that two GPUs reach each other over NVLink in one step, switches counting as none.
func (w interconnect) connected(a, b string) bool {
	return w.between(a, b) > 0 || w.switched[a] && w.switched[b] && !w.apart[[2]string{a, b}]
}

// components are the sets of GPUs that are connected over any number of steps, each in order.
func (w interconnect) components() [][]string {
	var out [][]string
	seen := map[string]bool{}
	for _, first := range w.order {
		if seen[first] {
			continue
		}
		seen[first] = true
		reached := map[string]bool{first: true}
		for todo := []string{first}; len(todo) > 0; todo = todo[1:] {
			for _, next := range w.order {
				if !seen[next] && w.connected(todo[0], next) {
					seen[next], reached[next] = true, true
					todo = append(todo, next)
				}
			}
		}
		var members []string
		for _, m := range w.order {
			if reached[m] {
				members = append(members, m)
			}
		}
		out = append(out, members)
	}
	return out
}

// allOnSwitch says that all of them are on switches. GPUs of a node on switches are on the same ones.
func (w interconnect) allOnSwitch(members []string) bool {
	return !slices.ContainsFunc(members, func(m string) bool { return !w.switched[m] })
}

// aligned cuts an island in which every choice is as good into groups of 2, 4, 8, … by the places that GPUs of its model
// have on the node: so they follow NUMA nodes and PCIe roots, and a GPU that fails takes no other's place away.
func (w interconnect) aligned(members []string) []Group {
	places := slices.DeleteFunc(slices.Clone(w.order), func(a string) bool { return w.models[a] != w.models[members[0]] })
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

// complete says that all of a group are members, and each is connected with each.
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
