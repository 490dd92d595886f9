// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

func TestNodes_PoolIncompleteOrGone_ShapeStaysForGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		packed := &pool.Shapes{}
		indexer := published(t, packed, map[string]string{"a": "t4-1", "b": "l40s-4"})
		n := newNodes(indexer, time.Minute, nil)
		n.invalidate("a")
		n.invalidate("b")
		want := func(when string, pools int, again time.Duration) {
			t.Helper()
			all, wait := n.shapes()
			if len(all) != pools || wait != again {
				t.Errorf("%s: %d pools, again in %v; want %d, %v", when, len(all), wait, pools, again)
			}
		}
		// The first slice has the GPUs, the second one the monitors, in a pool of their own.
		withdraw := func(count int) {
			all := read.SlicesOf(indexer, "a")
			slices.SortFunc(all, func(a, b *pool.Slice) int { return cmp.Compare(a.Name, b.Name) })
			for _, s := range all[:count] {
				if err := indexer.Delete(s); err != nil {
					t.Fatal(err)
				}
			}
			n.invalidate("a")
		}
		want("both", 2, 0)
		withdraw(1)
		want("a's pool is incomplete", 2, time.Minute)
		time.Sleep(40 * time.Second)
		withdraw(len(read.SlicesOf(indexer, "a")))
		want("a's pool is gone", 2, 20*time.Second)
		put(t, indexer, packed, "a", "t4-1")
		n.invalidate("a")
		want("a is back", 2, 0)
		put(t, indexer, packed, "a", "l40s-4")
		n.invalidate("a")
		want("a is of another model", 1, 0)
		withdraw(1)
		want("a's pool is incomplete again", 1, time.Minute)
		time.Sleep(time.Minute)
		want("the time is over", 1, 0)
		withdraw(len(read.SlicesOf(indexer, "a")))
		n.shapes()
		if len(n.known) != 1 {
			t.Errorf("%d nodes are known, want only b", len(n.known))
		}
	})
}

// shapes are kept, so that nodes which are alike have the same ones.
var shapes = &pool.Shapes{}

func autoPool(t testing.TB, board, node string, elsewhere bool) pool.Pool {
	t.Helper()
	var all []*pool.Slice
	for _, s := range autoSlices(t, board, node, elsewhere) {
		one := shapes.Trim(s)
		all = append(all, &one)
	}
	return pool.Of(all)
}

// TestController_SampleOfOneNode_CountsForAll has two nodes of H100, of which one publishes the sample, before and after the
// other. The view for reviews and the metrics know the partitions of both.
func TestController_SampleOfOneNode_CountsForAll(t *testing.T) {
	for _, order := range [][]string{{"n1", "n2"}, {"n2", "n1"}} {
		at(t, nil, func(t *testing.T, e *env, c *Controller) {
			for _, node := range order {
				for _, s := range autoSlices(t, "hgx-h100", node, node == "n2") {
					e.Put(s)
				}
				pass(2 * time.Second)
			}
			cluster, _ := c.Cluster()
			const profile = "1g.10gb"
			free, devices := 0, 0
			for kind, n := range cluster.Counts.FreePlacements {
				if kind.Profile == profile {
					free += n
				}
			}
			for kind, n := range cluster.Counts.Devices {
				if kind.Profile == profile {
					devices += n
				}
			}
			if free != 2*8*7 || devices != 1 {
				t.Errorf("%v: %d free placements of %s and %d devices, want %d and 1", order, free, profile, devices, 2*8*7)
			}
			for _, p := range c.ClusterView().Pools() {
				if !slices.ContainsFunc(p.Slices, func(s *pool.Slice) bool { return len(s.Shape.Kinds) > 0 && s.Shape.Kinds[0].Profile != "" }) {
					t.Errorf("%v: the view of %s has no partitions", order, p.Node)
				}
			}
			if n := c.nodes.samples.Learn(autoPool(t, "hgx-h100", "n3", false)); len(n) > 0 {
				t.Errorf("%v: the layout is not kept", order)
			}
			e.Withdraw("n1")
			e.Withdraw("n2")
			pass(2 * grace)
			if forgotten := c.nodes.samples.Learn(autoPool(t, "hgx-h100", "n3", false)); len(forgotten) == 0 {
				t.Errorf("%v: the layout of no node is kept", order)
			}
		})
	}
}
