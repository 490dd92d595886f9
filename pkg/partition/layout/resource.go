// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Resource is something that partitions take beside memory and its slices.
type Resource struct {
	// Name is a DNS label: "ofa-engines", "instances-1g-10gb-me".
	Name string
	// Total is what the GPU has: as much as the profile with the most of it, or the number of instances of a profile.
	Total int
	of    func(gpu.Profile) int
}

// Of is what a partition of a profile takes.
func (r Resource) Of(p gpu.Profile) int { return r.of(p) }

func (r Resource) sum(set []Choice) int {
	n := 0
	for _, c := range set {
		n += r.of(c.Profile)
	}
	return n
}

// Engines are the multiprocessors and engines of the GPU, in a fixed order.
func Engines(profiles []gpu.Profile) []Resource {
	out := []Resource{
		{Name: "multiprocessors", of: func(p gpu.Profile) int { return p.Multiprocessors }},
		{Name: "copy-engines", of: func(p gpu.Profile) int { return p.CopyEngines }},
		{Name: "decoders", of: func(p gpu.Profile) int { return p.Decoders }},
		{Name: "encoders", of: func(p gpu.Profile) int { return p.Encoders }},
		{Name: "jpeg-engines", of: func(p gpu.Profile) int { return p.JPEGEngines }},
		{Name: "ofa-engines", of: func(p gpu.Profile) int { return p.OFAEngines }},
	}
	for i := range out {
		for _, p := range profiles {
			out[i].Total = max(out[i].Total, out[i].of(p))
		}
	}
	return out
}

// resources are the engines, and the number of instances of each profile.
func resources(profiles []gpu.Profile) []Resource {
	out := Engines(profiles)
	for _, p := range profiles {
		out = append(out, Resource{
			Name: "instances-" + gpu.ProfileLabel(p.Name), Total: p.Instances,
			of: func(o gpu.Profile) int {
				if o.Name == p.Name {
					return 1
				}
				return 0
			},
		})
	}
	return out
}

// Binding are the resources that partitions with a place beside each other could still exhaust, and that are not kept
// within what the GPU has by the others of them. An engine is named rather than a number of instances.
func Binding(profiles []gpu.Profile) []Resource {
	var out []Resource
	engines := len(Engines(nil))
	all := resources(profiles)
	for _, r := range slices.Concat(all[engines:], all[:engines]) {
		if most(profiles, r, nil) > r.Total {
			out = append(out, r)
		}
	}
	for i := 0; i < len(out); {
		others := slices.Delete(slices.Clone(out), i, i+1)
		if most(profiles, out[i], others) <= out[i].Total {
			out = others
		} else {
			i++
		}
	}
	return out
}

// Memory is the most memory that partitions beside each other have in sum.
func Memory(profiles []gpu.Profile) uint64 {
	best := make([]uint64, Slices(profiles)+1)
	for start := range Slices(profiles) {
		best[start+1] = max(best[start+1], best[start])
		for _, c := range at(profiles, start) {
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

// most is the most that partitions beside each other take of a resource, while none of the limited is exhausted. It goes
// along the slices and keeps, for each use of the limited resources so far, the best.
func most(profiles []gpu.Profile, r Resource, limited []Resource) int {
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
		choices := at(profiles, start)
		if known += len(best[start]); known > maxStates {
			return r.Total + 1
		}
		for used, sum := range best[start] {
			best[start+1][used] = max(best[start+1][used], sum)
		next:
			for _, c := range choices {
				then := used
				for i, l := range limited {
					if then[i] += l.of(c.Profile); then[i] > l.Total {
						continue next
					}
				}
				end := best[c.Placement.End()]
				end[then] = max(end[then], sum+r.of(c.Profile))
			}
		}
	}
	out := 0
	for _, sum := range best[len(best)-1] {
		out = max(out, sum)
	}
	return out
}

// at is every choice with a start.
func at(profiles []gpu.Profile, start int) []Choice {
	var out []Choice
	for _, p := range profiles {
		for _, place := range p.Placements {
			if place.Start == start {
				out = append(out, Choice{p, place})
			}
		}
	}
	return out
}
