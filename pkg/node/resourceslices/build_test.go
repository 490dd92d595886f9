// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// full are the options of a server that keeps every field.
var full = Options{Node: "n1", Taints: true, SharedDevices: true, Counters: true}

// h100 is the n-th of a node's GPUs.
func h100(n int) gpu.GPU {
	numa := n / 4
	return gpu.GPU{
		PCIAddress: fmt.Sprintf("0000:%02x:00.0", 0x10+8*n), UUID: fmt.Sprintf("GPU-00000000-0000-0000-0000-%012x", n),
		Index: n, Minor: n, ProductName: "NVIDIA H100 80GB HBM3", Brand: "Nvidia", Architecture: "Hopper",
		AddressingMode: "HMM", ComputeCapability: gpu.Version{Major: 9}, PCIeRoot: fmt.Sprintf("pci0000:%02x", 0xf+8*n),
		NUMANode: &numa, MemoryBytes: 81559 << 20, Multiprocessors: 132, MIG: gpu.MIG{Capable: true}, MPSCapable: true,
	}
}

func node(n int) gpu.Snapshot {
	s := gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09", CUDA: gpu.Version{Major: 13}}}
	for i := range n {
		s.GPUs = append(s.GPUs, h100(i))
	}
	return s
}

func with(o Options, held ...Held) Options {
	o.Held = held
	return o
}

// heldWhole and heldMonitor are held devices of a GPU.
func heldWhole(g gpu.GPU) Held {
	return Held{Device: gpu.Device{Kind: gpu.KindGPU, PCIAddress: g.PCIAddress}, GPU: g}
}

func heldMonitor(g gpu.GPU) Held {
	return Held{Device: gpu.Device{Kind: gpu.KindMonitor, PCIAddress: g.PCIAddress}, GPU: g}
}

func names(p Pool) []string {
	out := []string{}
	for _, s := range p.Slices {
		for _, d := range s.Devices {
			name := d.Name
			for _, t := range d.Taints {
				if t.Key == wire.UnhealthyTaint {
					name += " " + t.Value
				}
			}
			out = append(out, name)
		}
	}
	return out
}

func TestBuild_ConditionsAndHeldDevices_PublishesExpectedDevices(t *testing.T) {
	const held, other = "gpu-0000-10-00-0", "gpu-0000-18-00-0"
	gone := gpu.Snapshot{Driver: node(1).Driver}
	lost := gpu.Snapshot{Driver: gone.Driver, Problems: []gpu.Problem{{PCIAddress: "0000:10:00.0", Lost: true, Message: "GPU is lost"}}}
	mig := node(1)
	mig.GPUs[0].MIG.Enabled = true
	withheld := map[string]Condition{"0000:10:00.0": {State: Withheld, Message: "a record cannot be read"}}
	unknown := map[string]Condition{"0000:10:00.0": {State: Unknown, Message: "NVML does not answer"}}
	bare := gpu.GPU{PCIAddress: "0000:10:00.0", UUID: "GPU-1"}

	off := full
	off.NoMonitors = true
	asked := func(p sharing.Placements) Options {
		o := full
		o.Sharing = sharingtest.Source{MonitorsOf: func(gpu.GPU) sharing.Placements { return p }}
		return o
	}
	for name, tc := range map[string]struct {
		snapshot   gpu.Snapshot
		conditions map[string]Condition
		o          Options
		want       []string
		warnings   int
	}{
		"no driver":                     {gpu.Snapshot{}, nil, full, []string{}, 0},
		"well":                          {node(1), nil, full, []string{held, "monitor-0000-10-00-0"}, 0},
		"monitors are off":              {node(1), nil, off, []string{held}, 0},
		"monitors are off, one is held": {node(1), nil, with(off, heldMonitor(h100(0))), []string{held, "monitor-0000-10-00-0"}, 0},
		"no object asks for monitors":   {node(1), nil, asked(sharing.OnePlacement), []string{held}, 0},
		"no object asks for monitors, one is held": {node(1), nil, with(asked(sharing.OnePlacement), heldMonitor(h100(0))), []string{held, "monitor-0000-10-00-0"}, 0},
		"no object asks any more for monitors":     {node(1), nil, asked(sharing.EndingPlacements), []string{held, "monitor-0000-10-00-0 no-demand"}, 0},
		"no object asks, MIG mode":                 {mig, nil, asked(sharing.OnePlacement), []string{"monitor-0000-10-00-0"}, 1},
		"no object asks any more, MIG mode":        {mig, nil, asked(sharing.EndingPlacements), []string{"monitor-0000-10-00-0"}, 1},
		"no monitors by the settings, MIG mode":    {mig, nil, asked(sharing.NoPlacement), []string{}, 1},
		"no monitor without taints":                {node(1), nil, Options{SharedDevices: true}, []string{held}, 0},
		"no monitor without sharing":               {node(1), nil, Options{Taints: true}, []string{held}, 0},
		"lost":                                     {lost, nil, full, []string{}, 1},
		"lost and held":                            {lost, nil, with(full, heldWhole(h100(0))), []string{held + " lost"}, 1},
		"lost and held, no taints":                 {lost, nil, with(Options{}, heldWhole(h100(0))), []string{held}, 1},
		"gone and held":                            {gone, nil, with(full, heldWhole(bare)), []string{held + " absent"}, 1},
		"gone and watched":                         {gone, nil, with(full, heldMonitor(bare)), []string{"monitor-0000-10-00-0"}, 0},
		"gone and watched, no taints":              {gone, nil, with(Options{SharedDevices: true}, heldMonitor(bare)), []string{}, 0},
		"driver gone and held":                     {gpu.Snapshot{}, nil, with(full, heldWhole(h100(0))), []string{held + " absent"}, 1},
		"withheld is tainted":                      {node(1), withheld, full, []string{held + " withheld", "monitor-0000-10-00-0"}, 1},
		"withheld is left out without taints":      {node(1), withheld, Options{}, []string{}, 1},
		"unknown is tainted":                       {node(1), unknown, full, []string{held + " unknown", "monitor-0000-10-00-0"}, 1},
		"unknown is left out without taints":       {node(1), unknown, Options{}, []string{}, 1},
		"unknown, held and no taints":              {node(1), unknown, with(Options{}, heldWhole(h100(0))), []string{held}, 1},
		"withheld, held and no taints":             {node(1), withheld, with(Options{}, heldWhole(h100(0))), []string{held}, 1},
		"MIG mode is watched, not given out":       {mig, nil, full, []string{"monitor-0000-10-00-0"}, 1},
		"MIG mode under a claim":                   {mig, nil, with(full, heldWhole(h100(0))), []string{held + " mig-mode", "monitor-0000-10-00-0"}, 1},
		"well and held":                            {node(1), nil, with(full, heldWhole(h100(0))), []string{held, "monitor-0000-10-00-0"}, 0},
		"a problem without an address":             {gpu.Snapshot{Problems: []gpu.Problem{{Index: 3, Message: "?"}}}, nil, full, []string{}, 1},
		"a held device without a proper name":      {gone, nil, with(full, heldWhole(gpu.GPU{PCIAddress: "nowhere"})), []string{}, 1},
		"a GPU without a proper address":           {gpu.Snapshot{GPUs: []gpu.GPU{{PCIAddress: "0000:1B:00.0"}}}, nil, full, []string{}, 1},
		"two GPUs of one address are unavailable":  {gpu.Snapshot{GPUs: []gpu.GPU{h100(0), h100(0), h100(1)}}, nil, Options{}, []string{other}, 1},
		"a neighbour's condition is his affair":    {node(2), withheld, Options{}, []string{other}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, warnings := Build(tc.snapshot, tc.conditions, tc.o)
			if diff := cmp.Diff(tc.want, names(p)); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if len(warnings) != tc.warnings {
				t.Errorf("warnings %+v, want %d", warnings, tc.warnings)
			}
			for _, w := range warnings {
				if w.State == "" || w.Message == "" {
					t.Errorf("warning %+v does not say what is wrong", w)
				}
			}
		})
	}
}

func TestBuild_WholeGPUs_ComeBeforeMonitors(t *testing.T) {
	p, _ := Build(node(3), nil, full)
	if p.Name != "n1/gpu" || len(p.Slices) != 2 {
		t.Fatalf("pool %q of %d slices, want n1/gpu of 2", p.Name, len(p.Slices))
	}
	want := []string{
		"gpu-0000-10-00-0", "gpu-0000-18-00-0", "gpu-0000-20-00-0", "monitor-0000-10-00-0", "monitor-0000-18-00-0", "monitor-0000-20-00-0",
	}
	if diff := cmp.Diff(want, names(p)); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

func TestBuild_Monitors_AreSharedAndTainted(t *testing.T) {
	p, _ := Build(node(1), nil, full)
	d := p.Slices[1].Devices[0]
	if d.AllowMultipleAllocations == nil || !*d.AllowMultipleAllocations {
		t.Errorf("monitor %+v: want it shareable", d)
	}
	want := []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/monitor", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	if diff := cmp.Diff(want, d.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
}

// TestBuild_Monitors_HaveWhatEveryGPUHas: a selector that no GPU fails must not fail on a monitor device, because the
// scheduler then refuses the whole claim.
func TestBuild_Monitors_HaveWhatEveryGPUHas(t *testing.T) {
	p, _ := Build(node(1), nil, full)
	d := p.Slices[1].Devices[0]
	for _, e := range Catalogue() {
		if !slices.Contains(e.Always, gpu.KindGPU) {
			continue
		}
		if !slices.Contains(e.Always, gpu.KindMonitor) {
			t.Errorf("%s is not always on monitor devices", e.Name)
		}
		name := resourceapi.QualifiedName(e.Name)
		if c, ok := d.Capacity[name]; e.Capacity && (!ok || c.RequestPolicy.Default.Sign() != 0) {
			t.Errorf("capacity %s is %+v, want one of which claims consume nothing", name, c)
		}
		if _, ok := d.Attributes[name]; !e.Capacity && !ok {
			t.Errorf("attribute %s is missing", name)
		}
	}
}

func TestBuild_InputsShuffled_GivesSameBytes(t *testing.T) {
	s := node(16)
	s.GPUs[5].MIG.Enabled = true
	s.Problems = []gpu.Problem{{PCIAddress: "0000:f0:00.0", Index: 16, Message: "a"}, {PCIAddress: "0000:e8:00.0", Index: 17, Message: "b"}, {Index: 18, Message: "c"}}
	o := with(full, heldWhole(h100(30)), heldMonitor(gpu.GPU{PCIAddress: h100(30).PCIAddress}), heldWhole(h100(3)))
	o.Held[0].Device.PCIAddress, o.Held[1].Device.PCIAddress = "0000:f0:00.0", "0000:f0:00.0"
	conditions := map[string]Condition{h100(2).PCIAddress: {State: Withheld, Message: "x"}}
	bytes := func() string {
		p, w := Build(s, conditions, o)
		text, err := json.Marshal([]any{p, w})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	want := bytes()
	r := rand.New(rand.NewPCG(seedtest.Base(t), 2))
	for range 50 {
		r.Shuffle(len(s.GPUs), func(i, j int) { s.GPUs[i], s.GPUs[j] = s.GPUs[j], s.GPUs[i] })
		r.Shuffle(len(s.Problems), func(i, j int) { s.Problems[i], s.Problems[j] = s.Problems[j], s.Problems[i] })
		r.Shuffle(len(o.Held), func(i, j int) { o.Held[i], o.Held[j] = o.Held[j], o.Held[i] })
		if got := bytes(); got != want {
			t.Fatalf("another order of the same gives other slices:\n%s", cmp.Diff(want, got))
		}
	}
}

func TestBuild_SixteenGPUs_StayWithinAPILimits(t *testing.T) {
	s := node(16)
	for i := range s.GPUs {
		s.GPUs[i].ProductName = strings.Repeat("ü", 100)
	}
	p, _ := Build(s, nil, full)
	seen := map[string]bool{}
	for _, slice := range p.Slices {
		devices := slice.Devices
		if len(devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("%d devices in a slice", len(devices))
		}
		for _, d := range devices {
			if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("%s has %d attributes and capacities", d.Name, n)
			}
			if seen[d.Name] || len(d.Name) > 63 {
				t.Errorf("device name %q is used twice or too long", d.Name)
			}
			seen[d.Name] = true
			for name, a := range d.Attributes {
				for _, v := range []*string{a.StringValue, a.VersionValue} {
					if v != nil && (len(*v) > 64 || len(*v) == 0) {
						t.Errorf("%s of %s has %d bytes", name, d.Name, len(*v))
					}
				}
			}
		}
	}
	if len(seen) != 32 {
		t.Errorf("%d devices of 16 GPUs, want 32", len(seen))
	}
}

func TestBuild_Devices_StayWithinSizeBudget(t *testing.T) {
	p, _ := Build(node(8), nil, full)
	text, err := json.Marshal(p.Slices)
	if err != nil {
		t.Fatal(err)
	}
	if per := len(text) / 16; per > 1800 {
		t.Errorf("%d bytes of JSON a device, the budget is 1800", per)
	}
}

func toStrings[T ~string](in []T) []string {
	var out []string
	for _, s := range in {
		out = append(out, string(s))
	}
	slices.Sort(out)
	slices.SortStableFunc(out, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	return out
}
