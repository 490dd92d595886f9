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

// geometry holds the results of a GPU's MIG profiles.
type geometry struct {
	of gpu.MIG
	// err is the reason why the profiles are unusable; the following fields are empty then.
	err error

	slices  int
	memory  uint64
	binding []layout.Resource
	order   []layout.Choice
	// all is the profile with the engines of the whole GPU; nil if no profile takes all of it.
	all *gpu.Profile
}

// geometry computes the geometry. It caches the last result, because the GPUs of a node are usually equal.
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
		g.err = fmt.Errorf("its MIG partitions need %d counters, but the API allows only %d", counters,
			resourceapi.ResourceSliceMaxCountersPerCounterSet)
		return g
	}
	g.slices, g.memory, g.binding, g.order = n, layout.Memory(m.Profiles), binding, layout.Order(m.Profiles)
	for _, c := range g.order {
		if c.Placement.Size == n {
			all := c.Profile
			for i, to := range []*int{&all.Multiprocessors, &all.CopyEngines, &all.Decoders, &all.Encoders,
				&all.JPEGEngines, &all.OFAEngines} {
				*to = layout.Engines(m.Profiles)[i].Total
			}
			g.all = &all
		}
	}
	return g
}

// mode says which devices the MIG mode allows: a State excludes devices from new claims.
type mode struct {
	whole, partitions State
	why               string
	// external means that external partitions are published.
	external bool
}

// mode considers the GPU's health, then its MIG mode and who switched it on.
func (b *builder) mode(g gpuState, geometry geometry) mode {
	m := g.gpu.MIG
	note := func(format string) { b.warn(g.name(), "", format, g.gpu.PCIAddress) }
	off := mode{partitions: MIGMode, why: "the GPU's MIG mode is off"}
	switch {
	case g.unhealthy.State != "" && !g.unhealthy.State.temporary():
		return mode{whole: g.unhealthy.State, partitions: g.unhealthy.State, why: g.unhealthy.Message}
	case geometry.err != nil && m.Enabled:
		why := "its MIG mode is on, and its partitions are unknown: " + geometry.err.Error()
		if !g.holds(gpu.KindGPU) {
			b.warn(g.name(), MIGMode, "GPU at %s is not published: %s", g.gpu.PCIAddress, why)
		}
		return mode{whole: MIGMode, partitions: MIGMode, why: why}
	case geometry.err != nil:
		if len(m.Profiles) > 0 || m.Fault != "" {
			b.warn(g.name(), "", "GPU at %s is published whole only: %v", g.gpu.PCIAddress, geometry.err)
		}
		return off
	case g.gpu.VGPU:
		note("GPU at %s is a vGPU, and published whole only: only the host of the virtual machine can cut it")
		return off
	case len(m.Profiles) == 0:
		return off
	case m.Pending && !m.Enabled:
		note("GPU at %s is published whole only: its MIG mode is off but changes to on at its next reset")
		return off
	case m.Enabled && !m.Pending:
		note("GPU at %s is published with its existing partitions only: its MIG mode is on but changes to off at its " +
			"next reset")
		return mode{whole: MIGMode, partitions: MIGMode, why: "the GPU's MIG mode changes to off at its next reset",
			external: true}
	case m.Enabled && !b.o.Switched[g.gpu.PCIAddress]:
		note("GPU at %s is published as MIG partitions only: an administrator switched its MIG mode on. Switch it " +
			"off to publish the whole GPU")
		return mode{whole: MIGMode, why: "its MIG mode is on. Switch it off to publish the whole GPU", external: true}
	case m.Enabled:
		return mode{external: true}
	case (m.Switchable || b.o.AllowReset) && b.o.Holders[g.gpu.PCIAddress] != "":
		why := b.o.Holders[g.gpu.PCIAddress] + " has it open, so its MIG mode cannot be switched on"
		b.warn(g.name(), InUse, "partitions of GPU at %s are unavailable to new claims: %s. Stop it on this node, or "+
			"switch the mode on before it starts (nvidia-smi -mig 1)", g.gpu.PCIAddress, why)
		return mode{partitions: InUse, why: why}
	case m.Switchable || b.o.AllowReset:
		return mode{}
	}
	return off
}
