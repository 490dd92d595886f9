// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sharing is what a node's administrator says about sharing GPUs: one file, for which a config file of NVIDIA's
// device plugin will do as it is. It turns into what of a device can be had in shares.
//
// A typo is an error that names the field, for a setting that is quietly ignored is a GPU that is quietly not shared as
// was meant. What only the device plugin knows is accepted and named.
package sharing

import (
	"cmp"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
)

// Policy is what the node's settings say of a device. The zero Policy is a node without settings.
type Policy struct {
	// Strategy is for a share whose claim names none; empty is MPS where the GPU and the node have it.
	Strategy v1beta1.Strategy
	// Replicas is into how many equal shares the device is cut for claims that name no capacity; below 2 into none.
	Replicas int
	// MaxShares bounds how many claims have a share at once; 0 does not.
	MaxShares int
	// FailMany refuses claims that ask for more than one share in a request.
	FailMany bool
	// Interval is the time slice where the strategy is TimeSlicing; empty leaves it alone.
	Interval v1beta1.Interval
	// None keeps the device whole: it is not shared at all.
	None bool
}

// Step is the step of the memory that can be asked for, and the least there is to be had, in bytes.
const Step = 1 << 20

// clients is how many clients an MPS server has at the most (CUDA MPS documentation, Volta and newer). A MIG device has as
// many of them as it has of the GPU's compute slices.
const clients = 48

// Offer is what of a device can be had in shares.
type Offer struct {
	// Strategy is that of shares whose claims name no other.
	Strategy v1beta1.Strategy
	// Memory is what a claim gets that names none, in bytes and whole steps; Compute likewise, in percent.
	Memory  uint64
	Compute int
	// MaxShares is how many shares there can be.
	MaxShares int
}

// OfferOf is what a GPU, or a MIG profile of it, offers; false where it is not shared. mps says that the node has MPS.
func OfferOf(p Policy, g gpu.GPU, profile string, mps bool) (Offer, bool) {
	total := g.MemoryBytes
	if profile != "" {
		found, _ := g.MIG.ProfileNamed(profile)
		total = found.MemoryBytes
	}
	if p.None || total < 2*Step {
		return Offer{}, false
	}
	o := Offer{Strategy: StrategyOf(p, g, mps), Memory: total / Step * Step}
	o.MaxShares = maxShares(p, g, profile, o.Strategy)
	if p.Replicas > 1 {
		o.Memory = max(total/uint64(p.Replicas)/Step, 1) * Step
		if o.Strategy == v1beta1.StrategyMPS {
			o.Compute = 100 / p.Replicas
		}
	}
	return o, true
}

// StrategyOf is the strategy of the shares of a GPU whose claims name none.
func StrategyOf(p Policy, g gpu.GPU, mps bool) v1beta1.Strategy {
	if p.Strategy == "" && mps && g.MPSCapable {
		return v1beta1.StrategyMPS
	}
	return cmp.Or(p.Strategy, v1beta1.StrategyTimeSlicing)
}

// maxShares is how many shares of a device there can be.
func maxShares(p Policy, g gpu.GPU, profile string, strategy v1beta1.Strategy) int {
	n := clients
	if strategy == v1beta1.StrategyMPS && profile != "" {
		n = clientsOf(g.MIG, profile)
	}
	if p.Replicas > 1 && (p.Replicas < n || strategy != v1beta1.StrategyMPS) {
		n = p.Replicas
	}
	if p.MaxShares > 0 {
		n = min(n, p.MaxShares)
	}
	return n
}

func clientsOf(m gpu.MIG, profile string) int {
	all := 0
	for _, p := range m.Profiles {
		all = max(all, p.Slices)
	}
	found, ok := m.ProfileNamed(profile)
	if !ok || all == 0 {
		return clients
	}
	return max(1, clients*found.Slices/all)
}
