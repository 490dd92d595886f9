// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// MaxMemorySlices is more than any GPU has, so that counters with other names do not draw a GPU at a strange size.
const MaxMemorySlices = 32

// GPUsOf returns the names of the GPUs that a published device needs: its own, or the members of an NVLink group. There
// are none for a name that the driver does not give, and for monitor devices.
func GPUsOf(d resourceapi.Device) (out []string) {
	parsed, err := gpu.ParseName(d.Name)
	if err != nil || parsed.Kind == gpu.KindMonitor {
		return nil
	}
	addresses, _, _ := Needs(parsed, d)
	for _, a := range addresses {
		out = append(out, gpu.NameOf(a))
	}
	return out
}

// Needs returns the PCI addresses of the GPUs of a device, and the memory slices that it takes, by its counters. An
// NVLink group consumes the node's counter of each member, or the members' own counter sets.
func Needs(device gpu.Device, d resourceapi.Device) (gpus []string, start, size int) {
	gpus = []string{device.PCIAddress}
	member := func(name string) {
		if device.Kind != gpu.KindGroup {
			return
		}
		m, err := gpu.ParseName(name)
		if err == nil && m.Kind == gpu.KindGPU && !slices.Contains(gpus, m.PCIAddress) {
			gpus = append(gpus, m.PCIAddress)
		}
	}
	first, last := MaxMemorySlices, -1
	for _, use := range d.ConsumesCounters {
		member(strings.TrimSuffix(use.CounterSet, "-counter-set"))
		for name := range use.Counters {
			member("gpu-" + name)
			i, err := strconv.Atoi(strings.TrimPrefix(name, "memory-slice-"))
			if strings.HasPrefix(name, "memory-slice-") && err == nil && i >= 0 && i < MaxMemorySlices {
				first, last = min(first, i), max(last, i)
			}
		}
	}
	slices.Sort(gpus)
	if last < 0 {
		return gpus, 0, 0
	}
	return gpus, first, last + 1 - first
}
