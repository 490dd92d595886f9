// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// hangGPU makes a query of the first GPU hang until the faults are cleared.
func (e testEnv) hangGPU(query string) {
	simtest.Change(e.T, e.Machine, func(s *engine.State) {
		s.Faults = []engine.Fault{{Query: query, GPU: s.GPUs[0].UUID, Latency: time.Hour}}
	})
	e.Cleanup(e.answer)
}

func (e testEnv) answer() {
	simtest.Change(e.T, e.Machine, func(s *engine.State) { s.Faults = nil })
}

// hangingQueries are the first query of a GPU, one in the middle, the last one, and all.
var hangingQueries = []string{"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues", "*"}

// TestPlugin_OneGPUHangsAtStart_ServesOthers starts with a GPU that hangs. It is published after the hang, unless a claim
// holds it: then it stays published.
func TestPlugin_OneGPUHangsAtStart_ServesOthers(t *testing.T) {
	for _, query := range hangingQueries {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.Make()
			e.hangGPU(query)
			e.start()
			e.Published(gpu.KindGPU, 7)
			c, other := e.AddClaim("a", first, ""), e.AddClaim("b", second, "")
			e.mustPrepare(t, apiFault{}, other)
			if err := e.Prepare(c)[c.Uid]; !strings.Contains(err, gpu.SilentText) {
				t.Errorf("the claim of the GPU that hangs: %q", err)
			}
			e.answer()
			e.Published(gpu.KindGPU, 8)
			e.mustPrepare(t, apiFault{}, c)
			// The next start finds it hanging again, with a claim.
			e.Stop()
			e.hangGPU(query)
			e.start()
			e.Eventually("a tainted GPU among eight", func() (bool, string) {
				taints := tainted(e.Devices())
				return len(taints) == 1 && strings.HasPrefix(taints[0], first), strings.Join(taints, ", ")
			})
			e.Published(gpu.KindGPU, 8)
			e.Unprepare(other, c)
			e.answer()
			e.Eventually("no taints", func() (bool, string) {
				taints := tainted(e.Devices())
				return len(taints) == 0, strings.Join(taints, ", ")
			})
			e.Published(gpu.KindGPU, 8)
			e.CheckClean()
		})
	}
}

// TestPlugin_OneGPUHangs_IsTaintedAlone has a GPU that hangs later.
func TestPlugin_OneGPUHangs_IsTaintedAlone(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	e.hangGPU("*")
	e.Eventually("the GPU's taint", func() (bool, string) {
		taints := tainted(e.Devices())
		return len(taints) == 1 && taints[0] == first+" "+string(resourceslices.Unknown), strings.Join(taints, ", ")
	})
	e.Published(gpu.KindGPU, 8)
	e.Event("Node", "n1", "DeviceNotReady", first, gpu.SilentText)
	c, other := e.AddClaim("a", first, ""), e.AddClaim("b", second, "")
	e.mustPrepare(t, apiFault{}, other)
	e.Unprepare(other)
	if err := e.Prepare(c)[c.Uid]; !strings.Contains(err, gpu.SilentText) {
		t.Errorf("the claim of the GPU that hangs: %q", err)
	}
	e.answer()
	e.Eventually("no taint", func() (bool, string) {
		taints := tainted(e.Devices())
		return len(taints) == 0, strings.Join(taints, ", ")
	})
	e.mustPrepare(t, apiFault{}, c)
	e.Unprepare(c)
	e.CheckClean()
}

// tainted returns the GPUs that are unavailable to new claims, with the reasons.
func tainted(devices map[string]resourceapi.Device) (out []string) {
	for name, d := range devices {
		if n, err := gpu.ParseName(name); err != nil || n.Kind != gpu.KindGPU {
			continue
		}
		for _, t := range d.Taints {
			if t.Key == wire.UnhealthyTaint {
				out = append(out, name+" "+t.Value)
			}
		}
	}
	return out
}
