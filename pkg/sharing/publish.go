// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"gpu-dra-driver/pkg/gpu"
)

// published is an entry of the file's publish list, which restricts a node's devices. The first match of a GPU counts.
type published struct {
	// One of the globs nodes and of products must match; an empty list matches all.
	nodes, products []string
	// profiles are globs of the MIG profiles to publish; all publishes every profile.
	profiles []string
	all      bool
	// Claims can share devices of these kinds.
	gpus, partitions bool
}

type publishEntry struct {
	Nodes     []string        `json:"nodes"`
	Products  []string        `json:"products"`
	Profiles  json.RawMessage `json:"profiles"`
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
	case "None":
	default:
		return p, fmt.Errorf("%s.shareable: %q is not known, use All, GPUs, Partitions or None", field, clip(e.Shareable))
	}
	var word string
	switch {
	case e.Profiles == nil || json.Unmarshal(e.Profiles, &word) == nil && word == "All":
		p.all = true
	case word != "None" && (word != "" || json.Unmarshal(e.Profiles, &p.profiles) != nil || len(p.profiles) == 0):
		return p, fmt.Errorf("%s.profiles: %s is not allowed, use All, None, or a list such as [1g.10gb, 3g.40gb]",
			field, clip(string(e.Profiles)))
	}
	for what, patterns := range map[string][]string{"nodes": p.nodes, "products": p.products, "profiles": p.profiles} {
		for _, pattern := range patterns {
			if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
				return p, fmt.Errorf("%s.%s: %q is not a valid pattern", field, what, clip(pattern))
			}
		}
	}
	return p, nil
}

func (s Settings) published(node string, g gpu.GPU) published {
	for _, p := range s.publish {
		if oneOf(p.nodes, node) && oneOf(p.products, productNames(g)...) {
			return p
		}
	}
	return published{all: true, gpus: true, partitions: true}
}

// Profile reports whether a node publishes a MIG profile of a GPU to new claims.
func (s Settings) Profile(node string, g gpu.GPU, profile string) bool {
	p := s.published(node, g)
	return p.all || len(p.profiles) > 0 && oneOf(p.profiles, profile)
}

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
