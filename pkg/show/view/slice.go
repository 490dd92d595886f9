// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import "gpu-dra-driver/pkg/cluster/pool"

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

// Pools returns the pools of slices, sorted by name.
func Pools(all []*pool.Slice) (out []Pool) {
	for _, g := range pool.Generations(all) {
		first := g.Slices[0]
		p := Pool{
			Name: first.Pool.Name, Node: first.Node, Generation: first.Pool.Generation,
			Slices: len(g.Slices), Expected: int(first.Pool.ResourceSliceCount), Outdated: g.Outdated,
		}
		for _, s := range g.Slices {
			if s.Shape != nil {
				p.Devices += len(s.Shape.Spec.Devices)
			}
		}
		out = append(out, p)
	}
	return out
}
