// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sharing reads an administrator's file on sharing a node's GPUs, and computes the shares that devices offer.
// It accepts the config files of NVIDIA's device plugin unchanged.
//
// An unknown field is an error with its name, because a GPU must not stay unshared on account of a typo. Fields
// that only the device plugin uses are accepted and listed.
package sharing

import (
	"cmp"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
)

// Policy holds a node's settings for one device. The zero Policy is a node without settings.
type Policy struct {
	// Strategy is for shares whose claims name none; empty means MPS if the GPU and the node support it.
	Strategy v1beta1.Strategy
	// Replicas is the number of equal shares for claims without a capacity; below 2 such a claim gets the whole device.
	Replicas int
	// MaxShares limits the number of concurrent shares; 0 means no limit.
	MaxShares int
	// FailMany refuses claims that ask for several shares in one request.
	FailMany bool
	// Interval is the time slice of the strategy TimeSlicing; empty keeps the current one.
	Interval v1beta1.Interval
	// None disables sharing of the device.
	None bool
}

// Step is the unit of a memory request, in bytes; MinMemory is the minimum. A CUDA context takes many times that, and no
// driver reserves so much of a board that nothing of it is left.
const (
	Step      = 1 << 20
	MinMemory = 16 * Step
)

// clients is the maximum number of clients of an MPS server (CUDA MPS documentation, Volta and newer). A MIG device
// gets a part in proportion to its compute slices.
const clients = 48

// Offer describes the shares of a device.
type Offer struct {
	// Strategy is for shares whose claims name none.
	Strategy v1beta1.Strategy
	// Memory is the default for claims without a request, in bytes and a multiple of Step; Compute likewise, in percent.
	Memory  uint64
	Compute int
	// MaxShares is the maximum number of concurrent shares.
	MaxShares int
}

// OfferOf returns the shares of a GPU or of one of its MIG profiles; false if it is not shared. mps: the node supports
// MPS.
func OfferOf(p Policy, g gpu.GPU, profile string, mps bool) (Offer, bool) {
	total := g.MemoryBytes
	if profile != "" {
		found, _ := g.MIG.ProfileNamed(profile)
		total = found.MemoryBytes
	}
	if p.None || total < 2*MinMemory {
		return Offer{}, false
	}
	o := Offer{Strategy: StrategyOf(p, g, mps), Memory: total / Step * Step}
	o.MaxShares = maxShares(p, g, profile, o.Strategy)
	if p.Replicas > 1 {
		o.Memory = max(total/uint64(p.Replicas)/Step*Step, MinMemory)
		if o.Strategy == v1beta1.StrategyMPS {
			o.Compute = max(100/p.Replicas, 1)
		}
	}
	return o, true
}

// StrategyOf returns the strategy of shares whose claims name none.
func StrategyOf(p Policy, g gpu.GPU, mps bool) v1beta1.Strategy {
	if p.Strategy == "" && mps && g.MPSCapable {
		return v1beta1.StrategyMPS
	}
	return cmp.Or(p.Strategy, v1beta1.StrategyTimeSlicing)
}

// maxShares returns the maximum number of concurrent shares of a device.
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
