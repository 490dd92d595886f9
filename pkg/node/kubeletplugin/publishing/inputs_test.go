// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"testing"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// TestInputs_SeveralConditions_WorstCounts has one GPU with several reasons to be unavailable.
func TestInputs_SeveralConditions_WorstCounts(t *testing.T) {
	const address = "0000:1b:00.0"
	whole := []plan.Plan{{Devices: []plan.Device{{Kind: gpu.KindGPU, PCIAddress: address}}}}
	gpus := func(silent bool, faults ...gpu.Fault) gpu.Snapshot {
		return gpu.Snapshot{GPUs: []gpu.GPU{{PCIAddress: address, Silent: silent, Faults: faults}}}
	}
	groups, worst := gpu.Fault{State: health.DrainP2P}, gpu.Fault{State: health.Lost}
	for name, c := range map[string]struct {
		in   inputs
		want resourceslices.State
	}{
		"nothing":                          {inputs{scan: gpus(false)}, ""},
		"an unreadable record":             {inputs{scan: gpus(false), incomplete: true}, resourceslices.Withheld},
		"an unreadable record, held whole": {inputs{scan: gpus(false), incomplete: true, plans: whole}, ""},
		"a fault of groups":                {inputs{scan: gpus(false, groups)}, health.DrainP2P},
		"a fault of groups, and a record":  {inputs{scan: gpus(false, groups), incomplete: true}, resourceslices.Withheld},
		"a driver that is not ready":       {inputs{scan: gpus(false), incomplete: true, notReady: "no library"}, resourceslices.NotReady},
		"a GPU without an answer":          {inputs{scan: gpus(true), notReady: "no library"}, resourceslices.Unknown},
		"a fault of the GPU":               {inputs{scan: gpus(true, worst), unknown: true}, health.Lost},
		"a device plugin": {inputs{scan: gpus(true, worst), served: map[string]string{address: "nvidia.com/gpu"}},
			resourceslices.DevicePlugin},
	} {
		if got := c.in.conditions()[address].State; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
