// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"maps"
	"slices"
)

// Pool is a pool of devices, as its newest generation publishes it.
type Pool struct {
	Name       string `json:"pool"`
	Node       string `json:"node"`
	Generation int64  `json:"generation"`
	// Slices of the newest generation exist, of the Expected number.
	Slices   int `json:"slices"`
	Expected int `json:"expected"`
	Devices  int `json:"devices"`
	// Outdated is the number of slices of older generations.
	Outdated int `json:"outdated,omitempty"`
}

// Pools merges slices by pool, sorted by name.
func Pools(all []*Slice) []Pool {
	found := map[string]*Pool{}
	total := map[string]int{}
	for _, s := range all {
		total[s.Pool.Name]++
		p := found[s.Pool.Name]
		if p == nil || p.Generation < s.Pool.Generation {
			p = &Pool{Name: s.Pool.Name, Node: s.Node, Generation: s.Pool.Generation, Expected: int(s.Pool.ResourceSliceCount)}
			found[s.Pool.Name] = p
		}
		if p.Generation == s.Pool.Generation {
			p.Slices++
			if s.Shape != nil {
				p.Devices += len(s.Shape.Devices)
			}
		}
	}
	var out []Pool
	for _, name := range slices.Sorted(maps.Keys(found)) {
		p := *found[name]
		p.Outdated = total[name] - p.Slices
		out = append(out, p)
	}
	return out
}
