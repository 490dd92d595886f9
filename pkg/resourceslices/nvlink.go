// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"strings"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/topology"
)

// groups names for each GPU the largest set of GPUs that it is in of which each has NVLink to each: on switches all of
// them, otherwise the largest clique of the island. The name is its size and its first member, so that it stays while its
// members do.
func groups(gpus []gpu.GPU) map[string]string {
	out := map[string]string{}
	name := func(members []string) {
		label := fmt.Sprintf("nvlink-%d-%s", len(members), strings.NewReplacer(":", "-", ".", "-").Replace(members[0]))
		for _, m := range members {
			out[m] = label
		}
	}
	for _, island := range topology.Find(gpus) {
		if island.Switched {
			name(island.Members)
			continue
		}
		for _, g := range island.Groups { // The larger come later.
			name(g.Members)
		}
	}
	return out
}

// versionOf is the newest generation of a GPU's links, nil where there are none or it is not known.
func versionOf(links []gpu.Link) *int {
	newest := 0
	for _, l := range links {
		newest = max(newest, l.Version)
	}
	if newest == 0 {
		return nil
	}
	return &newest
}
