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

// Settings are those of the nodes that a file is for. The zero Settings leave everything to claims.
type Settings struct {
	// common is for devices that no rule fits.
	common Policy
	// rules are tried in order; the first that fits a device counts.
	rules []rule
}

// rule is an entry of resources.
type rule struct {
	policy Policy
	// name is a glob over resource names, nodes and products are globs of which one must fit; none fits all.
	name            string
	nodes, products []string
	devices         devices
}

// devices are those a rule is for: all, the first so many, or some by index, UUID or "GPU:partition".
type devices struct {
	all   bool
	count int
	ids   []string
}

// GPU is what the settings say of a whole GPU of a node.
func (s Settings) GPU(node string, g gpu.GPU) Policy { return s.policy(node, g, "nvidia.com/gpu") }

// MIG is what they say of a MIG profile of a GPU.
func (s Settings) MIG(node string, g gpu.GPU, profile string) Policy {
	return s.policy(node, g, "nvidia.com/mig-"+strings.ReplaceAll(profile, "+", "."))
}

// policy finds the rule for a resource, by the name that pods of the device plugin ask for.
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
		// "0:1" is a MIG partition by number, which a GPU that is cut on demand has none of: the GPU counts.
		id, _, _ = strings.Cut(id, ":")
		return id == g.UUID || id == strconv.Itoa(g.Index)
	})
}

func oneOf(globs []string, values ...string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(pattern string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return glob(pattern, v) })
	})
}

// glob is checked when the file is read.
func glob(pattern, value string) bool {
	// Names hold slashes, which path.Match keeps apart.
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(value, "/", "\x00"))
	return ok && err == nil
}
