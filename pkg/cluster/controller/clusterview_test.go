// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

// published are the slices of nodes, in an index as the informer's.
func published(t *testing.T, shapes *pool.Shapes, nodes map[string]string) cache.Indexer {
	t.Helper()
	indexer := read.SliceInformer(fake.NewClientset(), slicetest.Driver, shapes).GetIndexer()
	for node, profile := range nodes {
		put(t, indexer, shapes, node, profile)
	}
	return indexer
}

func put(t *testing.T, indexer cache.Indexer, shapes *pool.Shapes, node, profile string) {
	t.Helper()
	all, err := slicetest.Node(profile, node, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		one := shapes.Trim(s)
		if err := indexer.Add(&one); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPools_NodeChanges_PoolFollows(t *testing.T) {
	shapes := &pool.Shapes{}
	indexer := published(t, shapes, map[string]string{"a": "t4-1", "b": "t4-1"})
	n := newNodes(indexer, 0, nil)
	if got := n.Pools(); len(got) != 0 {
		t.Errorf("%d pools before anything has changed", len(got))
	}
	n.invalidate("a")
	n.invalidate("b")
	if got := n.Pools(); len(got) != 2 || !got[0].Whole || !got[1].Whole {
		t.Errorf("%v", got)
	}
	for _, s := range read.SlicesOf(indexer, "a") {
		if err := indexer.Delete(s); err != nil {
			t.Fatal(err)
		}
	}
	n.invalidate("a")
	if got := n.Pools(); len(got) != 1 || got[0].Node != "b" {
		t.Errorf("%v", got)
	}
}

func TestClusterView_NoNewShape_Kept(t *testing.T) {
	shapes := &pool.Shapes{}
	indexer := published(t, shapes, map[string]string{"b": "t4-1"})
	n := newNodes(indexer, 0, nil)
	n.invalidate("b")
	k := newViewKeeper(slicetest.Driver, n, cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), false)
	was := k.current.Load()
	change := func(node, profile string) bool {
		put(t, indexer, shapes, node, profile)
		n.invalidate(node)
		k.build()
		before := was
		was = k.current.Load()
		return was != before
	}
	if change("a", "t4-1") {
		t.Error("a node like the others makes a new view")
	}
	if !change("c", "l40s-4") || len(was.Pools()) != 2 {
		t.Errorf("a node of another model makes none: %d pools", len(was.Pools()))
	}
}

// TestController_ServerUpgraded_ReviewsAskItsAllocator reads the version of the API server before and after its upgrade.
func TestController_ServerUpgraded_ReviewsAskItsAllocator(t *testing.T) {
	client := fake.NewClientset()
	discovered := client.Discovery().(*fakediscovery.FakeDiscovery)
	server := discovery.ToServerVersionInterfaceWithContext(discovered)
	k := newViewKeeper("gpu.nvidia.com", &nodes{slices: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)}, cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), false)
	if !ask.Features(k.current.Load().Server).FractionalCapacityRange {
		t.Error("an unknown version has fewer features than the newest")
	}
	for _, c := range []struct {
		version    string
		fractional bool
		again      time.Duration
	}{{"v1.36.4", false, versionInterval}, {"v1.36.4", false, versionInterval}, {"v1.37.1", true, versionInterval}, {"?", true, versionRetry}} {
		discovered.FakedServerVersion = &version.Info{GitVersion: c.version}
		if again := k.readVersion(t.Context(), server); again != c.again {
			t.Errorf("%s: again in %v, want %v", c.version, again, c.again)
		}
		select {
		case <-k.dirty:
			k.build()
		default:
		}
		if got := ask.Features(k.current.Load().Server).FractionalCapacityRange; got != c.fractional {
			t.Errorf("%s: %v", c.version, got)
		}
	}
}
