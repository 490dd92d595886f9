// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/node/usage"
)

// activityOf reads the activity of claims from the measurements of their devices.
func activityOf(uses map[[2]int]sampler.Use) map[[2]int]usage.Activity {
	out := map[[2]int]usage.Activity{}
	for at, use := range uses {
		var a usage.Activity
		if use.Utilization != sampler.Absent {
			a.Utilization, a.Source = use.Utilization, "nvml"
			if use.Kind == gpu.KindMIG {
				a.Source = "gpm"
			}
		}
		a.Watched, a.Occupied = use.Processes != sampler.Absent, use.Processes > 0
		out[at] = a
	}
	return out
}
