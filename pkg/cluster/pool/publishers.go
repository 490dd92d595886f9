// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// maxPerNode is the number of kinds above which a node counts as faulty. A node with GPUs of one model publishes at
// most twenty.
const maxPerNode = 128

// kinds returns the kinds of the pool's devices.
func (p Pool) kinds() sets.Set[Kind] {
	out := sets.New[Kind]()
	for _, s := range p.Slices {
		out.Insert(s.Shape.Kinds...)
		out.Insert(s.Shape.renamed...)
	}
	return out
}

// Faulty reports whether the node publishes more kinds than any real node.
func (p Pool) Faulty() bool { return p.kinds().Len() > maxPerNode }

// Publishers returns the number of nodes that publish each kind. Nodes choose the names of kinds, so a node with too
// many does not count: a kind that only such nodes publish has the number 0.
func Publishers(pools []Pool) map[Kind]int {
	out := map[Kind]int{}
	for p, nodes := range Distinct(pools) {
		kinds := p.kinds()
		if p.Faulty() {
			nodes = 0
		}
		for k := range kinds {
			out[k] += nodes
		}
	}
	return out
}

// Fold counts the devices and placements of kinds that only faulty nodes publish, and of kinds beyond the limit, as one
// kind: metrics keep series for each. It prefers kinds with more publishers.
func (c *DeviceCounts) Fold(publishers map[Kind]int, limit int) {
	kinds := slices.SortedFunc(maps.Keys(publishers), func(a, b Kind) int {
		return cmp.Or(cmp.Compare(publishers[b], publishers[a]), strings.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	kept := sets.New(kinds[:min(limit, len(kinds))]...)
	fold := func(k Kind) Kind {
		if publishers[k] == 0 || !kept.Has(k) {
			return Kind{Type: "other", Product: "other"}
		}
		return k
	}
	devices, placements := map[KindState]int{}, map[Kind]int{}
	for k, n := range c.Devices {
		devices[KindState{fold(k.Kind), k.State}] += n
	}
	for k, n := range c.FreePlacements {
		placements[fold(k)] += n
	}
	c.Devices, c.FreePlacements = devices, placements
}
