// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/sampler"
	"gpu-dra-driver/pkg/usage"
)

// activityOf reads the activity of a claim from the measurements of its devices. Nothing is known of claims that share a
// GPU or partition, because the measurements are those of all of them.
func activityOf(uses map[[2]int]sampler.Use) func(plan, device int) usage.Activity {
	return func(plan, device int) (a usage.Activity) {
		use := uses[[2]int{plan, device}]
		if !use.Alone {
			return a
		}
		if m := use.Measured; m.Utilization != sampler.Absent {
			a.Utilization, a.Source = m.Utilization, "nvml"
			if use.Kind == gpu.KindMIG {
				a.Source = "gpm"
			}
		}
		a.Watched, a.Occupied = use.Measured.Processes != nil, len(use.Measured.Processes) > 0
		return a
	}
}
