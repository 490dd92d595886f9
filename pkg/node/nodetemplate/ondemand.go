// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodetemplate

import (
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// onDemand finds out what a node publishes in part, or not at all, until an object asks for it. That is the effect of the
// setting Auto, and slices do not name their settings.
type onDemand struct {
	// wholes counts GPUs, and placements those of each profile, by model.
	wholes     map[string]int
	placements map[string]map[string]int
	// islands are the largest groups of the GPUs.
	islands map[string]bool
	groups  bool
}

func (o *onDemand) see(d resourceapi.Device) {
	if o.wholes == nil {
		o.wholes, o.placements, o.islands = map[string]int{}, map[string]map[string]int{}, map[string]bool{}
	}
	model := text(d, "productName")
	switch text(d, "type") {
	case string(gpu.KindGPU):
		o.wholes[model]++
		if island := text(d, "nvlinkGroup"); island != "" {
			o.islands[island] = true
		}
	case string(gpu.KindMIG):
		if o.placements[model] == nil {
			o.placements[model] = map[string]int{}
		}
		o.placements[model][text(d, "profile")]++
	case string(gpu.KindGroup):
		o.groups = true
	}
}

// note adds the profiles without some of their placements, and the groups that are missing. A GPU has at least one placement
// of each profile, and two of a profile that takes at most half of it.
func (o *onDemand) note(t *template) {
	for model, profiles := range o.placements {
		largest := 0
		for profile := range profiles {
			largest = max(largest, computeSlices(profile))
		}
		for profile, n := range profiles {
			least := o.wholes[model]
			if 2*computeSlices(profile) <= largest {
				least *= 2
			}
			if n < least {
				t.note("the node publishes few placements of these profiles, because no object asks for them, and a new node publishes the "+
					"others on demand; --board predicts all placements: %s", profile)
			}
		}
	}
	for island := range o.islands {
		if !o.groups {
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
