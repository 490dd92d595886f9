// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/sampler"
	"gpu-dra-driver/pkg/show/usage"
)

// activityOf reads the activity of a claim from the measurements of its devices.
func activityOf(uses map[[2]int]sampler.Use) func(plan, device int) usage.Activity {
	return func(plan, device int) (a usage.Activity) {
		use, ok := uses[[2]int{plan, device}]
		if !ok {
			return a
		}
		if use.Utilization != sampler.Absent {
			a.Utilization, a.Source = use.Utilization, "nvml"
			if use.Kind == gpu.KindMIG {
				a.Source = "gpm"
			}
		}
		a.Watched, a.Occupied = use.Processes != sampler.Absent, use.Processes > 0
		return a
	}
}
