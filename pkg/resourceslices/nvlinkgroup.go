// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"slices"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/topology"
)

// labels names for each GPU the largest set of GPUs that it is in of which each has NVLink to each: on switches all of
// them, otherwise the largest clique of the island. The name is its size and its first member, so that it stays while its
// members do.
func labels(islands []topology.Island) map[string]string {
	out := map[string]string{}
	for _, island := range islands {
		groups := island.Groups
		if island.Switched {
			groups = []topology.Group{{Members: island.Members}}
		}
		for _, g := range groups { // The larger come later.
			for _, m := range g.Members {
				out[m] = groupOf(g.Members).Name()
			}
		}
	}
	return out
}

// groupOf is the group of these GPUs.
func groupOf(members []string) gpu.Device {
	return gpu.Device{Kind: gpu.KindGroup, Size: len(members), PCIAddress: members[0]}
}

// offered are an island's groups in the order to offer them. GPUs are taken one by one from the front. Of the two halves of
// a larger group the further one comes first, so that groups are taken from the other end; but the larger group at the
// front goes before those behind it, so that the small ones use up what the GPUs have begun, and large ones stay whole.
func offered(island topology.Island) []topology.Group {
	out := slices.Clone(island.Groups)
	slices.SortStableFunc(out, func(x, y topology.Group) int {
		size := len(x.Members)
		nx, ny := slices.Index(island.Members, x.Members[0])/size, slices.Index(island.Members, y.Members[0])/size
		return cmp.Or(cmp.Compare(size, len(y.Members)), cmp.Compare(nx/2, ny/2), cmp.Compare(ny, nx))
	})
	return out
}
