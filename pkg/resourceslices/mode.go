// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import "gpu-dra-driver/pkg/gpu"

// mode is what a GPU's MIG mode allows to publish: a State bars what is not for new claims.
type mode struct {
	whole, parts State
	why          string
	// foreign says that partitions made by an administrator count.
	foreign bool
}

// mode decides by the GPU's health first, then by its MIG mode and who set it.
func (b *builder) mode(c candidate, g geometry) mode {
	m := c.gpu.MIG
	name := gpu.Device{Kind: gpu.KindGPU, PCIAddress: c.gpu.PCIAddress}.Name()
	note := func(format string) { b.warn(name, "", format, c.gpu.PCIAddress) }
	off := mode{parts: MIGMode, why: "the GPU's MIG mode is off"}
	switch {
	case c.sick.State != "" && c.sick.State != Withheld:
		return mode{whole: c.sick.State, parts: c.sick.State, why: c.sick.Message}
	case g.err != nil && m.Enabled:
		why := "its MIG mode is on, and its partitions cannot be told: " + g.err.Error()
		if !c.whole {
			b.warn(name, MIGMode, "GPU at %s is not published: %s", c.gpu.PCIAddress, why)
		}
		return mode{whole: MIGMode, parts: MIGMode, why: why}
	case g.err != nil:
		if len(m.Profiles) > 0 || m.Fault != "" {
			b.warn(name, "", "GPU at %s is published whole only: %v", c.gpu.PCIAddress, g.err)
		}
		return off
	case len(m.Profiles) == 0:
		return off
	case m.Pending && !m.Enabled:
		note("GPU at %s is published whole only: its MIG mode is off and is to be on after its next reset")
		return off
	case m.Enabled && !m.Pending:
		note("GPU at %s is not published beyond the partitions it has: its MIG mode is on and is to be off after its next reset")
		return mode{whole: MIGMode, parts: MIGMode, why: "the GPU's MIG mode is to be off after its next reset", foreign: true}
	case m.Enabled && !b.o.Switched[c.gpu.PCIAddress]:
		note("GPU at %s is published as MIG partitions only: its MIG mode was turned on by an administrator; turn it off to have the GPU whole")
		return mode{whole: MIGMode, why: "its MIG mode is on, so that it cannot be used as a whole; turn MIG off to publish it", foreign: true}
	case m.Enabled:
		return mode{foreign: true}
	case m.Switchable || b.o.AllowReset:
		return mode{}
	}
	return off
}
