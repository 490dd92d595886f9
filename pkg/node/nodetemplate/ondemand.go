// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"strconv"
	"strings"

	"gpu-dra-driver/pkg/gpu"
)

// noteOnDemand notes what the node publishes in part, or not at all, until an object asks for it: the profiles without some
// of their placements, and the groups that are missing. That is the effect of the setting Auto, and slices do not name their
// settings. A GPU has at least one placement of each profile, and two of a profile that takes at most half of it.
func (t *template) noteOnDemand() {
	type part struct{ model, profile string }
	wholes, largest, placements := map[string]int{}, map[string]int{}, map[part]int{}
	islands, groups := map[string]bool{}, false // islands are the largest groups of the GPUs.
	for _, s := range t.out {
		for _, d := range s.Spec.Devices {
			model, profile := text(d, "productName"), text(d, "profile")
			switch gpu.Kind(text(d, "type")) {
			case gpu.KindGPU:
				wholes[model]++
				if island := text(d, "nvlinkGroup"); island != "" {
					islands[island] = true
				}
			case gpu.KindMIG:
				placements[part{model, profile}]++
				largest[model] = max(largest[model], computeSlices(profile))
			case gpu.KindGroup:
				groups = true
			}
		}
	}
	for p, n := range placements {
		least := wholes[p.model]
		if 2*computeSlices(p.profile) <= largest[p.model] {
			least *= 2
		}
		if n < least {
			t.note("the node publishes few placements of these profiles, because no object asks for them, and a new node publishes the "+
				"others on demand; --board predicts all placements: %s", p.profile)
		}
	}
	for island := range islands {
		if !groups {
			t.note("the node publishes no NVLink groups: no object asks for them, or its settings exclude them; --board predicts them, "+
				"here those of %s", island)
		}
	}
}

// computeSlices is the number before the g of a profile such as 3g.40gb, or 0.
func computeSlices(profile string) int {
	number, _, _ := strings.Cut(profile, "g.")
	n, _ := strconv.Atoi(number)
	return n
}
