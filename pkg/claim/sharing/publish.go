// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gpu-dra-driver/pkg/gpu"
)

// published is an entry of the file's publish list, which restricts a node's devices. The first match of a GPU counts.
type published struct {
	// One of the globs nodes and of products must match; an empty list matches all.
	nodes, products []string
	// profiles are globs of the MIG profiles to publish; all publishes every profile, auto those that the cluster asks
	// for.
	profiles  []string
	all, auto bool
	// groups publishes NVLink groups, autoGroups if the cluster asks for groups.
	groups, autoGroups bool
	// monitors publishes monitor devices, autoMonitors if the cluster asks for them.
	monitors, autoMonitors bool
	// Claims can share devices of these kinds. autoShares means that they can if the cluster asks for shares.
	gpus, partitions, autoShares bool
}

type publishEntry struct {
	Nodes     []string        `json:"nodes"`
	Products  []string        `json:"products"`
	Profiles  json.RawMessage `json:"profiles"`
	Groups    string          `json:"groups"`
	Monitors  string          `json:"monitors"`
	Shareable string          `json:"shareable"`
}

func (e publishEntry) read(field string) (published, error) {
	p := published{nodes: e.Nodes, products: e.Products}
	switch e.Shareable {
	case "", "All":
		p.gpus, p.partitions = true, true
	case "GPUs":
		p.gpus = true
	case "Partitions":
		p.partitions = true
	case "Auto":
		p.gpus, p.partitions, p.autoShares = true, true, true
	case "None":
	default:
		return p, fmt.Errorf("%s.shareable: %q is not known, use All, Auto, GPUs, Partitions or None", field,
			clip(e.Shareable))
	}
	for _, one := range []struct {
		name, value string
		all, auto   *bool
	}{{"groups", e.Groups, &p.groups, &p.autoGroups}, {"monitors", e.Monitors, &p.monitors, &p.autoMonitors}} {
		switch one.value {
		case "", "All":
			*one.all = true
		case "Auto":
			*one.auto = true
		case "None":
		default:
			return p, fmt.Errorf("%s.%s: %q is not known, use All, Auto or None", field, one.name, clip(one.value))
		}
	}
	var word string
	switch {
	case e.Profiles == nil || json.Unmarshal(e.Profiles, &word) == nil && word == "All":
		p.all = true
	case word == "Auto":
		p.auto = true
	case word != "None" && (word != "" || json.Unmarshal(e.Profiles, &p.profiles) != nil || len(p.profiles) == 0):
		return p, fmt.Errorf("%s.profiles: %s is not allowed, use All, Auto, None, or a list such as [1g.10gb, "+
			"3g.40gb]",
			field, clip(string(e.Profiles)))
	}
	if n := slices.Index(p.profiles, "Auto"); n >= 0 {
		p.auto, p.profiles = true, slices.Delete(p.profiles, n, n+1)
	}
	return p, checkPatterns(field,
		map[string][]string{"nodes": p.nodes, "products": p.products, "profiles": p.profiles})
}

func (s Settings) published(node string, g gpu.GPU) published {
	for _, p := range s.publish {
		if oneOf(p.nodes, node) && oneOf(p.products, productNames(g)...) {
			return p
		}
	}
	return published{all: true, groups: true, monitors: true, gpus: true, partitions: true}
}

// Placements says how many of a MIG profile's placements, of a GPU's NVLink groups, of its monitor devices or of a
// device's shares, a node publishes to new claims.
type Placements int

const (
	AllPlacements Placements = iota
	// EndingPlacements are published for a moment longer, but no new claim gets them, except for one partition of the
	// node. EndingAllPlacements has no such exception.
	EndingPlacements
	EndingAllPlacements
	// OnePlacement is one of the node, so that its profile stays known. With it, GPUs that an administrator cut have
	// their monitor devices.
	OnePlacement
	// EndingOnePlacement is the one, for a moment longer, but no new claim gets it.
	EndingOnePlacement
	// LaterPlacements are published once an object asks for them: another node publishes the one.
	LaterPlacements
	NoPlacement
)

func (p published) shares(profile string) bool {
	if profile == "" {
		return p.gpus
	}
	return p.partitions
}

// productNames returns a GPU's model as NVML and as node labels spell it.
func productNames(g gpu.GPU) []string {
	return []string{g.ProductName, strings.ReplaceAll(g.ProductName, " ", "-")}
}
