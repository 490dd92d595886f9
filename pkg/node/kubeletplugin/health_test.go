// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"gpu-dra-driver/internal/nvml"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/health/tracker"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// tainted waits until the published device has the taint, or none with its key.
func (e testEnv) tainted(device string, want resourceapi.DeviceTaint, present bool) {
	e.Helper()
	e.Eventually(device+" "+want.Key+"="+want.Value+": "+strconv.FormatBool(present), func() (bool, string) {
		d, ok := e.Devices()[device]
		var found []string
		for _, t := range d.Taints {
			if t.Key == want.Key {
				found = append(found, t.Value+":"+string(t.Effect))
			}
		}
		if !present {
			return ok && len(found) == 0, strings.Join(found, " ")
		}
		return len(found) == 1 && found[0] == want.Value+":"+string(want.Effect), strings.Join(found, " ")
	})
}

var needsReset = resourceapi.DeviceTaint{
	Key: wire.UnhealthyTaint, Value: "reset", Effect: resourceapi.DeviceTaintEffectNoSchedule,
}

// recorded waits for the record of the first GPU's faults.
func (e testEnv) recorded() *record.GPUs {
	e.Helper()
	records, err := record.OpenGPUs(e.Host, filepath.Join(e.StateDir(), "gpus"), tracker.Setting)
	if err != nil {
		e.Fatal(err)
	}
	e.Eventually("the fault's record", func() (bool, string) {
		simtest.Change(e.T, e.Machine, func(s *engine.State) {
			s.RaiseOf(&s.GPUs[0], engine.Event{Type: engine.EventXID, Data: 46, GPUInstance: -1, ComputeInstance: -1})
		})
		r, err := records.Get("0000:1b:00.0")
		return err == nil && len(r.Faults) == 1, "none"
	})
	return records
}

// TestPlugin_DriverWithoutRecoveryActions_XIDTaintsUntilCleared uses a driver before R570. The API server refuses the first
// writes of the taint. The fault outlives a restart, and ends when it is cleared.
func TestPlugin_DriverWithoutRecoveryActions_XIDTaintsUntilCleared(t *testing.T) {
	e := newEnv(t)
	e.DriverVersion = "550.54.15"
	e.start()
	e.Published(gpu.KindGPU, 8)
	c := e.AddClaim("u-1", first, "")
	e.mustPrepare(t, apiFault{}, c)
	asked := e.Faults.Set(env.UpdateSlice, "", apierrors.NewInternalError(errors.New("etcd")))
	records := e.recorded()
	<-asked
	e.Faults.Clear()
	e.tainted(first, needsReset, true)
	e.tainted(second, needsReset, false)
	e.Unprepare(c)
	e.Stop()
	e.start()
	e.tainted(first, needsReset, true)
	refused := e.AddClaim("u-2", first, "")
	if err := e.Prepare(refused)[refused.Uid]; !strings.Contains(err, "XID 46") || !strings.Contains(err, "nvidia-smi -r") {
		t.Errorf("a claim of the faulty GPU: %q", err)
	}
	faults, err := tracker.Clear(e.Host, records, filepath.Join(e.StateDir(), "health.lock"), "0000:1b:00.0")
	if err != nil || len(faults) != 1 {
		t.Errorf("Clear = %v, %v", faults, err)
	}
	e.tainted(first, needsReset, false)
	e.mustPrepare(t, apiFault{}, refused)
	e.Unprepare(refused)
	e.CheckClean()
}

// TestPlugin_EndsBetweenEventAndTaint_NextOnePublishesTaint ends a plugin that knows a fault and may not publish it.
func TestPlugin_EndsBetweenEventAndTaint_NextOnePublishesTaint(t *testing.T) {
	e := newEnv(t)
	e.DriverVersion = "550.54.15"
	e.start()
	e.Published(gpu.KindGPU, 8)
	c := e.AddClaim("u-1", first, "")
	e.mustPrepare(t, apiFault{}, c)
	e.Faults.Set(env.UpdateSlice, "", apierrors.NewInternalError(errors.New("etcd")))
	e.recorded()
	e.Stop()
	e.tainted(first, needsReset, false)
	e.Faults.Clear()
	e.start()
	e.tainted(first, needsReset, true)
	e.Unprepare(c)
	e.CheckClean()
}

// TestPlugin_NVMLFailsSinceStart_PrepareSaysSo: no answer of NVML is not a node without a driver.
func TestPlugin_NVMLFailsSinceStart_PrepareSaysSo(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	e.Stop()
	simtest.Change(t, e.Machine, func(s *engine.State) { s.Faults = []engine.Fault{{Query: "nvmlInit", Code: nvml.Unknown}} })
	e.start()
	c := e.AddClaim("u-1", first, "")
	if err := e.Prepare(c)["u-1"]; !strings.Contains(err, "the plugin is not ready: NVML has not answered since its start") {
		t.Errorf("a claim before NVML's first answer: %q", err)
	}
	simtest.Change(t, e.Machine, func(s *engine.State) { s.Faults = nil })
	e.mustPrepare(t, apiFault{}, c)
	e.Unprepare(c)
	e.CheckClean()
}

// TestPlugin_NVMLFailsSinceStart_TaintsAsARunningPlugin lets NVML fail for a running plugin, and for one that starts: both
// publish the same devices, each with a taint.
func TestPlugin_NVMLFailsSinceStart_TaintsAsARunningPlugin(t *testing.T) {
	e := newEnv(t)
	e.start()
	for kind, n := range map[gpu.Kind]int{gpu.KindGPU: 8, gpu.KindMIG: 200, gpu.KindMonitor: 8} {
		e.Published(kind, n)
	}
	c := e.AddClaim("u-1", first, "")
	var want []string
	for name := range e.Devices() {
		if d, err := gpu.ParseName(name); err == nil && d.Kind != gpu.KindGroup { // A group needs GPUs without a taint.
			want = append(want, name)
		}
	}
	slices.Sort(want)
	for _, starts := range []bool{false, true} {
		if starts {
			e.mustPrepare(t, apiFault{}, c) // Not before: a claim keeps a session of NVML open.
			e.Stop()
		}
		simtest.Change(t, e.Machine, func(s *engine.State) { s.Faults = []engine.Fault{{Query: "nvmlInit", Code: nvml.Unknown}} })
		if starts {
			e.start()
		}
		e.Eventually("eight GPUs are tainted, and all devices are there", func() (bool, string) {
			now, taints := slices.Sorted(maps.Keys(e.Devices())), tainted(e.Devices())
			return len(taints) == 8 && slices.Equal(want, now), fmt.Sprintf("starts: %v; %d devices, want %d; %q", starts, len(now), len(want), taints)
		})
		simtest.Change(t, e.Machine, func(s *engine.State) { s.Faults = nil })
		e.Eventually("no taint", func() (bool, string) { return len(tainted(e.Devices())) == 0, fmt.Sprint(tainted(e.Devices())) })
	}
	e.Unprepare(c)
	e.CheckClean()
}

// TestPlugin_HealthQueriesFail_UnmonitoredWithoutEffect has queries of one GPU's health fail for a while.
func TestPlugin_HealthQueriesFail_UnmonitoredWithoutEffect(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	simtest.Change(t, e.Machine, func(s *engine.State) {
		s.Faults = []engine.Fault{{GPU: s.GPUs[0].UUID, Query: "nvmlDeviceGetFieldValues", Code: nvml.Unknown}}
	})
	unmonitored := resourceapi.DeviceTaint{Key: resourceslices.UnmonitoredTaint, Effect: resourceapi.DeviceTaintEffectNone}
	e.tainted(first, unmonitored, true)
	e.tainted(second, unmonitored, false)
	c := e.AddClaim("u-1", first, "")
	e.mustPrepare(t, apiFault{}, c)
	simtest.Change(t, e.Machine, func(s *engine.State) { s.Faults = nil })
	e.tainted(first, unmonitored, false)
	e.Unprepare(c)
	e.CheckClean()
}

// TestPlugin_StormOfXIDs_ServesClaims raises more XIDs of a program than a driver does in some seconds. All are counted,
// no taint is written, and claims are served meanwhile.
func TestPlugin_StormOfXIDs_ServesClaims(t *testing.T) {
	const storm = 5000
	e := newEnv(t)
	e.start()
	e.Published(gpu.KindGPU, 8)
	c, other := e.AddClaim("u-1", first, ""), e.AddClaim("u-2", second, "")
	e.mustPrepare(t, apiFault{}, c)
	fault := engine.Event{Data: 31, GPUInstance: -1, ComputeInstance: -1}
	e.raise(`xid="31"} `, fault)
	simtest.Change(t, e.Machine, func(s *engine.State) {
		fault.Type = engine.EventXID
		for range storm {
			s.RaiseOf(&s.GPUs[0], fault)
		}
	})
	e.mustPrepare(t, apiFault{}, other)
	e.Unprepare(other)
	e.Eventually("all XIDs are counted", func() (bool, string) {
		for line := range strings.Lines(e.MetricsText()) {
			if value, ok := strings.CutPrefix(line, `gpu_dra_xid_errors_total{uuid="`); ok {
				_, value, _ = strings.Cut(value, "} ")
				n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				return err == nil && n > storm, line
			}
		}
		return false, "no counter"
	})
	e.tainted(first, needsReset, false)
	e.Unprepare(c)
	e.CheckClean()
}
