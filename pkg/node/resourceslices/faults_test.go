// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// unhealthy returns the value of each device's unhealthy taint, by name.
func unhealthy(p resourceslices.Pool) map[string]string {
	out := map[string]string{}
	for _, s := range p.Slices {
		for _, d := range s.Devices {
			out[d.Name] = ""
			for _, t := range d.Taints {
				if t.Key == wire.UnhealthyTaint {
					out[d.Name] = t.Value
				}
			}
		}
	}
	return out
}

// TestBuild_FaultyGPU_TaintsItsDevicesOnly checks each state of pkg/gpu/health on the second of eight GPUs.
func TestBuild_FaultyGPU_TaintsItsDevicesOnly(t *testing.T) {
	groups := []string{pair0, quad0, octet}
	for _, state := range health.States {
		t.Run(state.Name, func(t *testing.T) {
			conditions := map[string]resourceslices.Condition{"0000:11:00.0": {State: resourceslices.State(state.Name), Message: state.Cause}}
			for _, taints := range []bool{true, false} {
				o := resourceslices.Options{Node: "n1", Taints: taints, SharedDevices: true, Counters: true}
				healthy, _ := resourceslices.Build(hgx(8, layouttest.H100()), nil, o)
				pool, warnings := resourceslices.Build(hgx(8, layouttest.H100()), conditions, o)
				if len(warnings) != 1 || warnings[0].State != resourceslices.State(state.Name) || !strings.Contains(warnings[0].Message, state.Cause) {
					t.Errorf("warnings %+v", warnings)
				}
				got := unhealthy(pool)
				for name := range unhealthy(healthy) {
					d, err := gpu.ParseName(name)
					if err != nil {
						t.Fatal(err)
					}
					own := d.PCIAddress == "0000:11:00.0" && (d.Kind == gpu.KindGPU || d.Kind == gpu.KindMIG)
					affected := slices.Contains(groups, name) || own && !state.GroupsOnly
					value, published := got[name]
					withdrawn := !taints || state.Name == health.Lost
					if d.Kind == gpu.KindMonitor && d.PCIAddress == "0000:11:00.0" && state.Name == health.Lost {
						affected = true
					}
					switch {
					case !affected && (!published || value != ""):
						t.Errorf("taints %v: %s is published: %v, tainted as %q", taints, name, published, value)
					case affected && !withdrawn && value != state.Name:
						t.Errorf("%s is tainted as %q", name, value)
					case affected && withdrawn && published:
						t.Errorf("taints %v: %s is available to new claims", taints, name)
					}
				}
			}
		})
	}
}

func TestBuild_FaultyGPUHeld_StaysPublishedForItsClaim(t *testing.T) {
	s := hgx(8, layouttest.H100())
	conditions := map[string]resourceslices.Condition{"0000:11:00.0": {State: health.Reset, Message: "the driver asks for a reset"}}
	o := resourceslices.Options{Node: "n1", Counters: true, Held: []resourceslices.Held{
		{Device: gpu.Device{Kind: gpu.KindGPU, PCIAddress: "0000:11:00.0"}, GPU: s.GPUs[1]},
	}}
	pool, warnings := resourceslices.Build(s, conditions, o)
	if _, ok := unhealthy(pool)[at(1)]; !ok || len(warnings) != 1 || !strings.Contains(warnings[0].Message, "stays published for its claim") {
		t.Errorf("published: %v; warnings %+v", ok, warnings)
	}
}

func TestBuild_StateToEvict_TaintsWithNoExecute(t *testing.T) {
	s := hgx(2, layouttest.H100())
	conditions := map[string]resourceslices.Condition{
		"0000:10:00.0": {State: health.Reset, Message: "x"}, "0000:11:00.0": {State: health.Memory, Message: "x"},
	}
	o := resourceslices.Options{Node: "n1", Taints: true, Counters: true, Settings: resourceslices.Settings{Evict: []string{health.Reset}}}
	pool, _ := resourceslices.Build(s, conditions, o)
	want := map[string]resourceapi.DeviceTaintEffect{
		at(0): resourceapi.DeviceTaintEffectNoExecute, at(1): resourceapi.DeviceTaintEffectNoSchedule,
	}
	for _, d := range pool.Slices[0].Devices {
		if effect, ok := want[d.Name]; ok && (len(d.Taints) != 1 || d.Taints[0].Effect != effect) {
			t.Errorf("%s: %+v, want the effect %s", d.Name, d.Taints, effect)
		}
	}
}

// TestBuild_RecordOfFaultsUnreadable_EvictsNoPod has each list of states to evict, for a fault that is not about the GPU.
func TestBuild_RecordOfFaultsUnreadable_EvictsNoPod(t *testing.T) {
	conditions := map[string]resourceslices.Condition{"0000:10:00.0": {State: health.UnreadableRecord, Message: "x"}}
	lists := [][]string{nil, health.Evictable()}
	for _, state := range health.Evictable() {
		lists = append(lists, []string{state})
	}
	for _, evict := range lists {
		o := resourceslices.Options{Node: "n1", Taints: true, Counters: true, Settings: resourceslices.Settings{Evict: evict}}
		pool, _ := resourceslices.Build(hgx(1, layouttest.H100()), conditions, o)
		want := []resourceapi.DeviceTaint{{
			Key: wire.UnhealthyTaint, Value: health.UnreadableRecord, Effect: resourceapi.DeviceTaintEffectNoSchedule,
		}}
		for _, d := range pool.Slices[0].Devices {
			if d.Name == at(0) && !slices.Equal(d.Taints, want) {
				t.Errorf("with %v: %+v", evict, d.Taints)
			}
		}
	}
}

// TestBuild_UnmonitoredGPU_TaintsItsDevicesWithoutEffect has faults of the second of eight GPUs unseen. Its groups have the
// taint too, its monitor device has not. A server without the effect None gets no such taint.
func TestBuild_UnmonitoredGPU_TaintsItsDevicesWithoutEffect(t *testing.T) {
	groups := []string{pair0, quad0, octet}
	for _, kept := range []bool{true, false} {
		s := hgx(8, layouttest.H100())
		s.GPUs[1].Unmonitored = "no events"
		pool, warnings := resourceslices.Build(s, nil, resourceslices.Options{
			Node: "n1", Taints: true, NoEffectTaints: kept, SharedDevices: true, Counters: true,
		})
		if len(warnings) > 0 {
			t.Errorf("warnings %+v", warnings)
		}
		for _, slice := range pool.Slices {
			for _, device := range slice.Devices {
				d, err := gpu.ParseName(device.Name)
				if err != nil {
					t.Fatal(err)
				}
				want := kept && d.Kind != gpu.KindMonitor && (d.PCIAddress == s.GPUs[1].PCIAddress && d.Kind != gpu.KindGroup || slices.Contains(groups, device.Name))
				got := slices.Contains(device.Taints, resourceapi.DeviceTaint{Key: resourceslices.UnmonitoredTaint, Effect: resourceapi.DeviceTaintEffectNone})
				if got != want {
					t.Errorf("kept %t: %s has the taints %v", kept, device.Name, device.Taints)
				}
			}
		}
	}
}
