// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/pkg/wire"
)

// minPause is the least time between two refreshes.
const minPause = 50 * time.Millisecond

// Run refreshes the picture after changes, until the context ends. In a cluster that always changes it uses a third
// of a processor.
func (c *Cluster) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
		}
		began := time.Now()
		if err := c.refresh(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(minPause, 2*time.Since(began))):
		}
	}
}

// refresh writes the changes to the feed. While slices are read, it shows the nodes that are complete. It shows none
// before the claims are read, because their devices would look free.
func (c *Cluster) refresh() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.status
	messages := map[string]message{"": {Status: &now}}
	reading := sets.New(c.status.Reading...)
	if reading.Len() == 0 || reading.Len() == 1 && reading.Has(Slices) {
		objects := view.Objects{
			Driver: c.status.Driver,
			Slices: slices.Collect(maps.Values(c.slices)),
			Closed: c.closed,
		}
		for _, r := range c.rules {
			objects.Rules = append(objects.Rules, *r)
		}
		slices.SortFunc(objects.Rules, func(a, b resourceapi.DeviceTaintRule) int {
			return cmp.Compare(a.Name, b.Name)
		})
		index := view.NewIndex(objects)
		layouts := index.Layouts()
		c.allNodes, c.layouts = c.allNodes || !slices.Equal(c.layouts, layouts), layouts
		c.refreshNodes(index, reading.Len() > 0, messages)
		c.refreshClaims(reading.Len() > 0, messages)
		c.pools, c.publishers, c.dirtyClaims = sets.New[string](), sets.New[string](), sets.New[types.NamespacedName]()
		c.allNodes, c.allClaims = false, false
	}
	return c.feed.put(messages)
}

// refreshNodes needs the claims of changed nodes only, which are few in a large fleet.
func (c *Cluster) refreshNodes(x *view.Index, partial bool, messages map[string]message) {
	changed := c.publishers.Clone()
	for pool := range c.pools {
		changed.Insert(x.NodeOf(pool), wire.NodeOf(pool))
		if before, known := c.nodes[pool]; known {
			changed.Insert(before)
		}
		c.nodes[pool] = x.NodeOf(pool)
	}
	var holders []resourceapi.ResourceClaim
	for _, claim := range c.claims {
		for pool := range c.poolsOf(claim) {
			if c.allNodes || changed.Has(x.NodeOf(pool)) {
				holders = append(holders, *claim)
				break
			}
		}
	}
	x.Hold(holders)
	if c.allNodes {
		changed = sets.New(slices.Collect(x.Names())...).Union(c.shown)
	}
	for name := range changed {
		if !x.Has(name) {
			messages["node "+name] = message{Gone: &gone{Node: name}}
			c.shown.Delete(name)
			continue
		}
		if partial && !x.Published(name) {
			continue
		}
		n := x.Node(name)
		if partial && n.Incomplete {
			continue
		}
		messages["node "+name] = message{Node: pageNode(n)}
		c.shown.Insert(name)
	}
}

// refreshClaims needs the slices of a claim's own pools only. While slices are read, no device counts as unpublished.
func (c *Cluster) refreshClaims(partial bool, messages map[string]message) {
	byPool, offered := map[string][]*pool.Slice{}, map[*pool.Shape]bool{}
	objects := view.Objects{Driver: c.status.Driver}
	for _, s := range c.slices {
		byPool[s.Pool.Name] = append(byPool[s.Pool.Name], s)
		if s.Shape != nil && !offered[s.Shape] {
			offered[s.Shape] = true
			objects.Slices = append(objects.Slices, s) // A pending claim is shown if its class selects a device.
		}
	}
	otherDevices := !maps.Equal(offered, c.offered)
	c.offered = offered
	var classes []resourceapi.DeviceClass
	for _, class := range c.classes {
		classes = append(classes, *class)
	}
	pools := sets.New[string]()
	for key, claim := range c.claims {
		pending := claim.Status.Allocation == nil
		if !c.allClaims && !c.dirtyClaims.Has(key) && !c.inChangedPool(claim) && !(pending && otherDevices) {
			continue
		}
		objects.Claims = append(objects.Claims, *claim)
		for pool := range c.poolsOf(claim) {
			pools.Insert(pool)
		}
		c.dirtyClaims.Insert(key)
	}
	for pool := range pools {
		objects.Slices = append(objects.Slices, byPool[pool]...)
	}
	for key := range c.dirtyClaims {
		ref := view.ClaimRef{Namespace: key.Namespace, Name: key.Name}
		messages["claim "+key.String()] = message{Gone: &gone{Claim: &ref}}
	}
	for _, claim := range view.Claims(objects, classes) {
		if partial {
			claim.Unpublished = nil
		}
		messages["claim "+claim.String()] = message{Claim: &claim}
	}
}

func (c *Cluster) inChangedPool(claim *resourceapi.ResourceClaim) bool {
	for pool := range c.poolsOf(claim) {
		if c.pools.Has(pool) {
			return true
		}
	}
	return false
}
