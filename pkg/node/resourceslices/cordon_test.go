// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

const noSchedule, noExecute = resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute

func TestParseCordons_Annotations_UnknownValuesCordonToo(t *testing.T) {
	key := func(name string) string { return wire.CordonAnnotation("gpu.nvidia.com", name) }
	got, err := wire.ParseCordons("gpu.nvidia.com", map[string]string{
		key("gpu-0000-1b-00-0"): "NoSchedule", key("gpu-0000-43-00-0"): "NoExecute", key("gpu-0000-52-00-0"): "yes",
		key("gpu-0000-1b-00-0-mig-1g-10gb-0"): "NoSchedule", key("first"): "NoSchedule",
		wire.CordonAnnotation("other.example.com", "gpu-0000-61-00-0"): "NoSchedule", "gpu.nvidia.com/gpu-0000-61-00-0": "NoSchedule",
	})
	want := wire.Cordons{"0000:1b:00.0": noSchedule, "0000:43:00.0": noExecute, "0000:52:00.0": noSchedule}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, part := range []string{key("gpu-0000-52-00-0"), `"yes"`, key("gpu-0000-1b-00-0-mig-1g-10gb-0"), `"first"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v lacks %s", err, part)
		}
	}
}

// TestBuild_CordonedGPU_NoNewClaimGetsAPartOfIt cordons the second of eight GPUs, on each kind of API server, alone and with
// a fault. On a server without taints only the devices of claims stay.
func TestBuild_CordonedGPU_NoNewClaimGetsAPartOfIt(t *testing.T) {
	const address = "0000:11:00.0"
	groups := []string{pair0, quad0, octet}
	snapshot := hgx(8, layouttest.H100())
	held := gpu.Device{Kind: gpu.KindMIG, PCIAddress: address, Profile: "1g.10gb", Start: 3}
	for _, effect := range []resourceapi.DeviceTaintEffect{noSchedule, noExecute} {
		for _, conditions := range []map[string]resourceslices.Condition{nil, {address: {State: health.Reset, Message: "broken"}}} {
			for _, o := range []resourceslices.Options{
				{Taints: true, SharedDevices: true, Counters: true}, {SharedDevices: true, Counters: true}, {Taints: true}, {},
			} {
				o.Node, o.Held = "n1", []resourceslices.Held{{Device: held, Size: 1, GPU: snapshot.GPUs[1]}}
				before, _ := resourceslices.Build(snapshot, conditions, o)
				o.Cordons = wire.Cordons{address: effect, "0000:ff:00.0": noExecute}
				after, _ := resourceslices.Build(snapshot, conditions, o)
				t.Run(fmt.Sprintf("%s taints %v counters %v faults %d", effect, o.Taints, o.Counters, len(conditions)), func(t *testing.T) {
					got := map[string]resourceapi.DeviceTaintEffect{}
					for name, d := range devices(after) {
						got[name] = ""
						for _, taint := range d.Taints {
							if taint.Key == wire.CordonTaint {
								got[name] = taint.Effect
							}
						}
					}
					for name := range devices(before) {
						d, err := gpu.ParseName(name)
						if err != nil {
							t.Fatal(err)
						}
						of := d.PCIAddress == address && d.Kind != gpu.KindMonitor && d.Kind != gpu.KindGroup || slices.Contains(groups, name)
						effectNow, published := got[name]
						switch {
						case !of && (!published || effectNow != ""):
							t.Errorf("%s of another GPU is published: %v, cordoned %q", name, published, effectNow)
						case of && o.Taints && effectNow != effect:
							t.Errorf("%s is published: %v, cordoned %q", name, published, effectNow)
						case of && !o.Taints && published != (d == held):
							t.Errorf("%s is published: %v", name, published)
						}
					}
					if !o.Taints {
						return
					}
					if a, b := unhealthy(before), unhealthy(after); !cmp.Equal(a, b) {
						t.Errorf("faults without and with the cordon (-without +with)\n%s", cmp.Diff(a, b))
					}
				})
			}
		}
	}
}

func devices(p resourceslices.Pool) map[string]resourceapi.Device {
	out := map[string]resourceapi.Device{}
	for _, s := range p.Slices {
		for _, d := range s.Devices {
			out[d.Name] = d
		}
	}
	return out
}
