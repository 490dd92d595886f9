// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"maps"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Resource is a resource of partitions besides memory and memory slices.
type Resource struct {
	// Name is a DNS label: "ofa-engines", "instances-1g-10gb-me".
	Name string
	// Total is the GPU's: the largest amount of any profile, or the allowed number of instances of a profile.
	Total int
	// Of returns the amount that a partition of a profile takes.
	Of func(gpu.Profile) int
}

// Engines returns the multiprocessors and engines of the GPU, in a fixed order.
func Engines(profiles []gpu.Profile) []Resource {
	out := []Resource{
		{Name: "multiprocessors", Of: func(p gpu.Profile) int { return p.Multiprocessors }},
		{Name: "copy-engines", Of: func(p gpu.Profile) int { return p.CopyEngines }},
		{Name: "decoders", Of: func(p gpu.Profile) int { return p.Decoders }},
		{Name: "encoders", Of: func(p gpu.Profile) int { return p.Encoders }},
		{Name: "jpeg-engines", Of: func(p gpu.Profile) int { return p.JPEGEngines }},
		{Name: "ofa-engines", Of: func(p gpu.Profile) int { return p.OFAEngines }},
	}
	for i := range out {
		for _, p := range profiles {
			out[i].Total = max(out[i].Total, out[i].Of(p))
		}
	}
	return out
}

// Binding returns the resources that disjoint partitions can exhaust even within the limits of the other binding ones.
// It prefers engines to numbers of instances.
func Binding(profiles []gpu.Profile) []Resource {
	var instances []Resource
	for _, p := range profiles {
		instances = append(instances, Resource{
			Name: "instances-" + gpu.ProfileLabel(p.Name), Total: p.Instances,
			Of: func(o gpu.Profile) int {
				if o.Name == p.Name {
					return 1
				}
				return 0
			},
		})
	}
	out := slices.DeleteFunc(append(instances, Engines(profiles)...), func(r Resource) bool {
		return maxUsed(profiles, r, nil) <= r.Total
	})
	for i := 0; i < len(out); {
		others := slices.Delete(slices.Clone(out), i, i+1)
		if maxUsed(profiles, out[i], others) <= out[i].Total {
			out = others
		} else {
			i++
		}
	}
	return out
}

// Memory returns the largest sum of memory of disjoint partitions.
func Memory(profiles []gpu.Profile) uint64 {
	memory := Resource{Of: func(p gpu.Profile) int { return int(p.MemoryBytes) }}
	return uint64(maxUsed(profiles, memory, nil))
}

// Above these limits a resource counts as binding without a proof, because a superfluous counter costs the scheduler
// little.
const (
	maxStates  = 1024
	maxLimited = 8
)

// maxUsed returns the largest amount that disjoint partitions take of a resource within the limits of the limited ones.
// It walks along the slices and keeps the best sum for each use of the limited resources. Without limited ones there is
// one use, so the result is exact.
func maxUsed(profiles []gpu.Profile, r Resource, limited []Resource) int {
	type use [maxLimited]int
	if len(limited) > maxLimited {
		return r.Total + 1
	}
	best := make([]map[use]int, Slices(profiles)+1)
	for i := range best {
		best[i] = map[use]int{}
	}
	best[0][use{}] = 0
	known := 0
	for start := range Slices(profiles) {
		choices := startingAt(profiles, start)
		if known += len(best[start]); known > maxStates {
			return r.Total + 1
		}
		for used, sum := range best[start] {
			best[start+1][used] = max(best[start+1][used], sum)
		next:
			for _, c := range choices {
				then := used
				for i, l := range limited {
					if then[i] += l.Of(c.Profile); then[i] > l.Total {
						continue next
					}
				}
				end := best[c.Placement.End()]
				end[then] = max(end[then], sum+r.Of(c.Profile))
			}
		}
	}
	return slices.Max(slices.Collect(maps.Values(best[len(best)-1])))
}
