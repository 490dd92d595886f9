// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/metrics"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
)

const (
	phasePending   = "pending"
	phaseAllocated = "allocated"
	phaseReserved  = "reserved"
	phaseDeleting  = "deleting"
)

// maxKinds limits the series of the cluster metrics, because nodes choose the names of models and profiles.
const maxKinds = 1000

// Cluster returns the numbers for the cluster metrics; false if this instance is not the leader.
func (c *Controller) Cluster() (metrics.Cluster, bool) {
	if c.leading.Load() == nil {
		return metrics.Cluster{}, false
	}
	all := c.Partitioned()
	phases, held := c.claims(c.Claims.GetIndexer())
	byNode := map[string][]string{}
	for _, p := range all {
		last := ""
		for _, s := range p.Slices {
			if s.Pool.Name != last && len(held[s.Pool.Name]) > 0 {
				byNode[p.Node] = append(byNode[p.Node], held[s.Pool.Name]...)
			}
			last = s.Pool.Name
		}
	}
	counts := pool.Count(all, byNode)
	counts.Fold(pool.Publishers(all), maxKinds)
	return metrics.Cluster{
		Nodes: len(all), Counts: counts, Claims: phases, Classes: c.classStatuses.states(), Prices: c.o.Prices,
	}, true
}

// claims counts this driver's claims by phase, and returns their devices by pool.
func (c *Controller) claims(claims cache.Indexer) (phases map[string]int, held map[string][]string) {
	phases = map[string]int{phasePending: 0, phaseAllocated: 0, phaseReserved: 0, phaseDeleting: 0}
	held = map[string][]string{}
	ours, view := map[string]bool{}, c.ClusterView()
	wants := func(spec resourceapi.ResourceClaimSpec) bool {
		for r := range selector.Requests(spec.Devices.Requests) {
			class := r.DeviceClassName
			if _, known := ours[class]; !known {
				ours[class] = view.Ours(class)
			}
			if ours[class] {
				return true
			}
		}
		return false
	}
	for _, claim := range read.All[*resourceapi.ResourceClaim](claims) {
		phase := phasePending
		if a := claim.Status.Allocation; a != nil {
			found := false
			for r := range pool.Results(a, c.driver) {
				found = true
				if r.AdminAccess == nil || !*r.AdminAccess {
					held[r.Pool] = append(held[r.Pool], r.Device)
				}
			}
			if !found {
				continue
			}
			phase = phaseAllocated
			if len(claim.Status.ReservedFor) > 0 {
				phase = phaseReserved
			}
		} else if unknown := bounded.TooLarge(claim) && len(claim.Spec.Devices.Requests) == 0; !unknown &&
			!wants(claim.Spec) {
			continue
		}
		if claim.DeletionTimestamp != nil {
			phase = phaseDeleting
		}
		phases[phase]++
	}
	return phases, held
}
