// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
)

// Policy holds a node's settings for one device. The zero Policy is a node without settings.
type Policy struct {
	// Strategy is for shares whose claims name none; empty means the first that the GPU and the node support.
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
	// Renamed means that the device plugin would rename the resource of the shares.
	Renamed bool
}

// Step is the unit of a memory request, in bytes; MinMemory is the minimum. A CUDA context takes many times that, and
// no driver reserves so much of a board that nothing of it is left.
const (
	Step      = 1 << 20
	MinMemory = 16 * Step
)

// maxClients is the maximum number of clients of an MPS server (CUDA MPS documentation, Volta and newer). A MIG device
// gets a part in proportion to its compute slices.
const maxClients = 48

// Offer describes the shares of a device.
type Offer struct {
	// Strategy is for shares whose claims name none.
	Strategy v1beta1.Strategy
	// Memory is the default for claims without a request, in bytes and a multiple of Step; Compute likewise, in
	// percent.
	Memory  uint64
	Compute int
	// MaxShares is the maximum number of concurrent shares.
	MaxShares int
	// Renamed is the policy's.
	Renamed bool
}

// OfferOf returns the shares of a GPU or of one of its MIG profiles; false if it is not shared. If only the policy
// forbids shares, the Offer describes those of earlier settings. The last argument says whether the node has the
// supervisor of MPS daemons.
func OfferOf(p Policy, g gpu.GPU, profile string, supervised bool) (Offer, bool) {
	total := g.MemoryBytes
	if profile != "" {
		found, _ := g.MIG.ProfileNamed(profile)
		total = found.MemoryBytes
	}
	if total < 2*MinMemory {
		return Offer{}, false
	}
	s := Default(p, g, supervised)
	o := Offer{Strategy: s.Name, Memory: total / Step * Step, MaxShares: maxShares(p, g, profile, s)}
	if p.Replicas > 1 {
		o.Memory, o.Renamed = max(total/uint64(p.Replicas)/Step*Step, MinMemory), p.Renamed
		if s.Limits {
			o.Compute = max(100/p.Replicas, 1)
		}
	}
	return o, !p.None
}

// With returns the policy of a device that has shares by a strategy; empty: it has none. Claims that name no strategy
// join those shares, whatever the settings have become.
func (p Policy) With(standing v1beta1.Strategy) Policy {
	if standing != "" && standing != p.Strategy {
		p.Strategy, p.Interval = standing, ""
	}
	return p
}

// maxShares returns the maximum number of concurrent shares of a device.
func maxShares(p Policy, g gpu.GPU, profile string, s Strategy) int {
	n := maxClients
	if s.Clients > 0 && profile != "" {
		n = clientsOf(g.MIG, profile)
	}
	if p.Replicas > 1 && (p.Replicas < n || s.Clients == 0) {
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
		return maxClients
	}
	return max(1, maxClients*found.Slices/all)
}

// Settings are parsed from one file. The zero Settings leave everything to claims.
type Settings struct {
	// common is the policy of devices without a matching rule.
	common Policy
	// rules are in order; the first match counts.
	rules   []rule
	publish []published
}

type rule struct {
	policy Policy
	// name is a glob for resource names. One of the globs nodes and of products must match; an empty list matches all.
	name            string
	nodes, products []string
	devices         devices
}

// devices selects all devices, the first count, or a list of indices, UUIDs or "GPU:partition".
type devices struct {
	all   bool
	count int
	ids   []string
}

// Policy finds the rule for a GPU, or for a MIG profile of it, by the resource name that pods of the device plugin
// request.
func (s Settings) Policy(node string, g gpu.GPU, profile string) Policy {
	resource := "nvidia.com/gpu"
	if profile != "" {
		resource = "nvidia.com/mig-" + strings.ReplaceAll(profile, "+", ".")
	}
	policy := s.common
	for _, r := range s.rules {
		if r.fits(node, g, resource) {
			policy = r.policy
			policy.MaxShares = cmp.Or(policy.MaxShares, s.common.MaxShares)
			break
		}
	}
	policy.None = policy.None || !s.published(node, g).shares(profile)
	return policy
}

func (r rule) fits(node string, g gpu.GPU, resource string) bool {
	return glob(r.name, resource) && oneOf(r.nodes, node) && oneOf(r.products, productNames(g)...) &&
		r.devices.has(g)
}

func (d devices) has(g gpu.GPU) bool {
	switch {
	case d.all:
		return true
	case d.count > 0:
		return g.Index < d.count
	}
	return slices.ContainsFunc(d.ids, func(id string) bool {
		// "0:1" is a MIG partition by number. Partitions created on demand have no numbers, so the GPU's counts.
		id, _, _ = strings.Cut(id, ":")
		return id == g.UUID || id == strconv.Itoa(g.Index)
	})
}

func oneOf(globs []string, values ...string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(pattern string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return glob(pattern, v) })
	})
}

// glob ignores the error, because Parse checks all patterns.
func glob(pattern, value string) bool {
	// path.Match does not match slashes by *, but resource names contain them.
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(value, "/", "\x00"))
	return ok && err == nil
}
