// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"reflect"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/layout"
)

// geometry is what follows from a GPU's MIG profiles.
type geometry struct {
	of gpu.MIG
	// err says why the profiles cannot be used; what is below is empty then.
	err error

	slices  int
	memory  uint64
	binding []layout.Resource
	order   []layout.Choice
	// all has the engines of the whole GPU, nil where no profile takes all of it.
	all *gpu.Profile
}

// geometry works it out, once for GPUs that are alike.
func (b *builder) geometry(m gpu.MIG) geometry {
	of := gpu.MIG{Capable: m.Capable, Profiles: m.Profiles, Fault: m.Fault}
	if b.last.order == nil || !reflect.DeepEqual(b.last.of, of) {
		b.last = newGeometry(of)
	}
	return b.last
}

func newGeometry(m gpu.MIG) geometry {
	g := geometry{of: m}
	if g.err = layout.Check(m); g.err != nil || len(m.Profiles) == 0 {
		return g
	}
	binding := layout.Binding(m.Profiles)
	n := layout.Slices(m.Profiles)
	if counters := n + 1 + len(binding); counters > resourceapi.ResourceSliceMaxCountersPerCounterSet {
		g.err = fmt.Errorf("its MIG partitions would need %d counters, and the API takes %d", counters, resourceapi.ResourceSliceMaxCountersPerCounterSet)
		return g
	}
	g.slices, g.memory, g.binding, g.order = n, layout.Memory(m.Profiles), binding, layout.Order(m.Profiles)
	for _, c := range g.order {
		if c.Placement.Size == n {
			all := c.Profile
			for i, to := range []*int{&all.Multiprocessors, &all.CopyEngines, &all.Decoders, &all.Encoders, &all.JPEGEngines, &all.OFAEngines} {
				*to = layout.Engines(m.Profiles)[i].Total
			}
			g.all = &all
		}
	}
	return g
}
