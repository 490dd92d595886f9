// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
)

// Source has the present sharing settings of a node.
type Source interface {
	// Policy returns the settings of a GPU, or of a MIG profile of it.
	Policy(g gpu.GPU, profile string) Policy
	// Offer returns the shares of a GPU, or of a MIG profile of it; false if it is not shared. An Offer with false is
	// for a device with claims that share it. standing is their strategy, if known.
	Offer(g gpu.GPU, profile string, standing v1beta1.Strategy) (Offer, bool)
	// Placements says which placements of a MIG profile to publish to new claims. External partitions are always
	// published. The MIG mode of the GPU is on only if an administrator switched it on; so it is with Shares.
	Placements(g gpu.GPU, profile string) Placements
	// Groups says which NVLink groups of a GPU to publish to new claims: all, ending ones or none.
	Groups(g gpu.GPU) Placements
	// Monitors says whether to publish the monitor device of a GPU to new claims: always, for a moment longer, or not.
	Monitors(g gpu.GPU) Placements
	// Shares says whether new claims can share a GPU, or a MIG profile of it, for which there is an Offer: always, for
	// a moment longer, or later.
	Shares(g gpu.GPU, profile string) Placements
}

// Demand answers for the setting Auto. The MIG mode of its GPUs is on only if an administrator switched it on.
type Demand interface {
	Placements(g gpu.GPU, profile string) Placements
	Groups() Placements
	Monitors() Placements
	Shares(g gpu.GPU) Placements
}

// Node is a Source of fixed settings.
type Node struct {
	Name     string
	Settings Settings
	// MPS means that the node has MPS.
	MPS bool
	// Demand is nil if the cluster has no controller; then the setting Auto publishes all devices.
	Demand Demand
}

// Policy implements Source.
func (n Node) Policy(g gpu.GPU, profile string) Policy { return n.Settings.Policy(n.Name, g, profile) }

// Offer implements Source.
func (n Node) Offer(g gpu.GPU, profile string, standing v1beta1.Strategy) (Offer, bool) {
	return OfferOf(n.Policy(g, profile).With(standing), g, profile, n.MPS)
}

// Placements implements Source.
func (n Node) Placements(g gpu.GPU, profile string) Placements {
	p := n.Settings.published(n.Name, g)
	switch {
	case p.all, len(p.profiles) > 0 && oneOf(p.profiles, profile), p.auto && n.Demand == nil:
		return AllPlacements
	case p.auto:
		return n.Demand.Placements(g, profile)
	}
	return NoPlacement
}

// Groups implements Source.
func (n Node) Groups(g gpu.GPU) Placements {
	p := n.Settings.published(n.Name, g)
	return n.placements(p.groups, p.autoGroups, Demand.Groups)
}

// Monitors implements Source.
func (n Node) Monitors(g gpu.GPU) Placements {
	p := n.Settings.published(n.Name, g)
	return n.placements(p.monitors, p.autoMonitors, Demand.Monitors)
}

// Shares implements Source. Devices with replicas are always shared: a claim without a capacity gets a share of them.
func (n Node) Shares(g gpu.GPU, profile string) Placements {
	auto := n.Settings.published(n.Name, g).autoShares && n.Policy(g, profile).Replicas < 2
	return n.placements(!auto, auto, func(d Demand) Placements { return d.Shares(g) })
}

func (n Node) placements(all, auto bool, asked func(Demand) Placements) Placements {
	switch {
	case all, auto && n.Demand == nil:
		return AllPlacements
	case auto:
		return asked(n.Demand)
	}
	return NoPlacement
}
