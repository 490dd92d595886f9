// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sharingtest has sharing settings for tests.
package sharingtest

import (
	"slices"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// Source is a sharing.Source of functions. Without them, all devices are published and none is shared.
type Source struct {
	// PolicyOfAll is the Policy of each device.
	PolicyOfAll  sharing.Policy
	OfferOf      func(g gpu.GPU, profile string, standing v1beta1.Strategy) (sharing.Offer, bool)
	PlacementsOf func(g gpu.GPU, profile string) sharing.Placements
	GroupsOf     func(g gpu.GPU) sharing.Placements
	MonitorsOf   func(g gpu.GPU) sharing.Placements
	SharesOf     func(g gpu.GPU, profile string) sharing.Placements
}

// Policy implements sharing.Source.
func (s Source) Policy(gpu.GPU, string) sharing.Policy { return s.PolicyOfAll }

// Offer implements sharing.Source.
func (s Source) Offer(g gpu.GPU, profile string, standing v1beta1.Strategy) (sharing.Offer, bool) {
	if s.OfferOf == nil {
		return sharing.Offer{}, false
	}
	return s.OfferOf(g, profile, standing)
}

// Placements implements sharing.Source.
func (s Source) Placements(g gpu.GPU, profile string) sharing.Placements {
	if s.PlacementsOf == nil {
		return sharing.AllPlacements
	}
	return s.PlacementsOf(g, profile)
}

// Groups implements sharing.Source.
func (s Source) Groups(g gpu.GPU) sharing.Placements {
	if s.GroupsOf == nil {
		return sharing.AllPlacements
	}
	return s.GroupsOf(g)
}

// Monitors implements sharing.Source.
func (s Source) Monitors(g gpu.GPU) sharing.Placements {
	if s.MonitorsOf == nil {
		return sharing.AllPlacements
	}
	return s.MonitorsOf(g)
}

// Shares implements sharing.Source.
func (s Source) Shares(g gpu.GPU, profile string) sharing.Placements {
	if s.SharesOf == nil {
		return sharing.AllPlacements
	}
	return s.SharesOf(g, profile)
}

// NoDemand is the Demand of a cluster in which no object asks for a MIG profile, a group, a monitor device or a share,
// but for its serving GPUs.
type NoDemand struct {
	// Serving are the PCI addresses of GPUs that have all placements of these profiles, and shares.
	Serving, Profiles []string
	// Elsewhere means that another node publishes a placement of each profile.
	Elsewhere bool
}

// Placements implements sharing.Demand.
func (n NoDemand) Placements(g gpu.GPU, profile string) sharing.Placements {
	if slices.Contains(n.Profiles, profile) && slices.Contains(n.Serving, g.PCIAddress) {
		return sharing.AllPlacements
	}
	if n.Elsewhere {
		return sharing.LaterPlacements
	}
	return sharing.OnePlacement
}

// Groups implements sharing.Demand.
func (NoDemand) Groups() sharing.Placements { return sharing.NoPlacement }

// Monitors implements sharing.Demand.
func (NoDemand) Monitors() sharing.Placements { return sharing.OnePlacement }

// Shares implements sharing.Demand.
func (n NoDemand) Shares(g gpu.GPU) sharing.Placements {
	if slices.Contains(n.Serving, g.PCIAddress) {
		return sharing.AllPlacements
	}
	return sharing.LaterPlacements
}
