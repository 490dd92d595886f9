// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"gpu-dra-driver/pkg/gpu"
)

// Settings are parsed from one file. The zero Settings leave everything to claims.
type Settings struct {
	// common is the policy of devices without a matching rule.
	common Policy
	// rules are in order; the first match counts.
	rules []rule
}

// rule is an entry of resources.
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

// GPU returns the policy of a whole GPU of a node.
func (s Settings) GPU(node string, g gpu.GPU) Policy { return s.policy(node, g, "nvidia.com/gpu") }

// MIG returns the policy of a MIG profile of a GPU.
func (s Settings) MIG(node string, g gpu.GPU, profile string) Policy {
	return s.policy(node, g, "nvidia.com/mig-"+strings.ReplaceAll(profile, "+", "."))
}

// policy finds the rule for a resource by the name that pods of the device plugin request.
func (s Settings) policy(node string, g gpu.GPU, resource string) Policy {
	for _, r := range s.rules {
		if r.fits(node, g, resource) {
			p := r.policy
			p.MaxShares = cmp.Or(p.MaxShares, s.common.MaxShares)
			return p
		}
	}
	return s.common
}

func (r rule) fits(node string, g gpu.GPU, resource string) bool {
	return glob(r.name, resource) && oneOf(r.nodes, node) && oneOf(r.products, g.ProductName, strings.ReplaceAll(g.ProductName, " ", "-")) &&
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
