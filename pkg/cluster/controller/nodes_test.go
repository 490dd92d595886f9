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
