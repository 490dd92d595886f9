// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"maps"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Resource is something that partitions take in addition to memory and its slices.
type Resource struct {
	// Name is a DNS label: "ofa-engines", "instances-1g-10gb-me".
	Name string
	// Total is what the GPU has: as much as the profile with the most of it, or the number of instances of a profile.
	Total int
	// Of is what a partition of a profile takes.
	Of func(gpu.Profile) int
}

// Engines are the multiprocessors and engines of the GPU, in a fixed order.
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

// Binding gives the resources that disjoint partitions could still exhaust, and that the other binding ones do not keep
// within the GPU's total. An engine is named rather than a number of instances.
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

// Memory is the most memory that disjoint partitions have in sum.
func Memory(profiles []gpu.Profile) uint64 {
	best := make([]uint64, Slices(profiles)+1)
	for start := range Slices(profiles) {
		best[start+1] = max(best[start+1], best[start])
		for _, c := range startingAt(profiles, start) {
			end := c.Placement.End()
			best[end] = max(best[end], best[start]+c.Profile.MemoryBytes)
		}
	}
	return best[len(best)-1]
}

// Beyond so many ways to use so many limited resources, a resource is taken for one that can be exhausted: a counter too
// many costs the scheduler little.
const (
	maxStates  = 1024
	maxLimited = 8
)

// maxUsed is the most that disjoint partitions take of a resource, while none of the limited is exhausted. It goes
// along the slices and keeps, for each use of the limited resources so far, the best.
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
