// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	ordered "cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
)

const first = "0000:10:00.0"

// smallGPU is a GPU of four slices: 1g at 0 to 3; 2g at 0, 2; 4g at 0.
func smallGPU(change ...func(*gpu.MIG)) gpu.Snapshot {
	s := node(1)
	s.GPUs[0].MIG = layouttest.A30()
	for _, c := range change {
		c(&s.GPUs[0].MIG)
	}
	return s
}

func switchable(m *gpu.MIG) { m.Switchable = true }
func enabled(m *gpu.MIG)    { m.Enabled, m.Pending = true, true }
func pending(m *gpu.MIG)    { m.Pending = !m.Pending }
func faulty(m *gpu.MIG)     { m.Fault, m.Profiles = "NVML answers nonsense", nil }
func garbage(m *gpu.MIG)    { m.Profiles[0].Placements[0].Size = -3 }

// externalPartition is a partition of the small GPU with so many compute instances.
func externalPartition(profile string, start, size, devices int) gpu.Partition {
	p := gpu.Partition{Profile: profile, Placement: gpu.Placement{Start: start, Size: size}}
	for i := range devices {
		p.Devices = append(p.Devices, gpu.PartitionDevice{UUID: fmt.Sprintf("MIG-%s-%d", profile, i), ComputeInstance: i})
	}
	return p
}

func heldPartition(profile string, start, size int) Held {
	return Held{
		Device: gpu.Device{Kind: gpu.KindMIG, PCIAddress: first, Profile: profile, Start: start}, Size: size, MemoryBytes: uint64(size) << 30,
		GPU: gpu.GPU{PCIAddress: first, UUID: "GPU-1"},
	}
}

// deviceList lists devices except monitors by name: "whole", "1g@3". It adds "*" to one that has a UUID, then its
// taint.
func deviceList(p Pool) string {
	var out []string
	for _, s := range p.Slices {
		for _, d := range s.Devices {
			name, err := gpu.ParseName(d.Name)
			text := "whole"
			switch {
			case err != nil || name.Kind == gpu.KindMonitor:
				continue
			case name.Kind == gpu.KindMIG:
				profile, _, _ := strings.Cut(name.Profile, ".")
				text = fmt.Sprintf("%s@%d", profile, name.Start)
				if _, ok := d.Attributes["uuid"]; ok {
					text += "*"
				}
			}
			for _, t := range d.Taints {
				text += "(" + t.Value + ")"
			}
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// inOrder is a list as deviceList gives it.
func inOrder(list string) string {
	words := strings.Fields(list)
	slices.Sort(words)
	return strings.Join(words, " ")
}

func TestBuild_MIGModesAndHeldPartitions_PublishesExpectedDevices(t *testing.T) {
	const parts = "1g@3 1g@2 1g@1 1g@0 2g@2 2g@0 4g@0"
	const uncut = "whole"
	ours := Options{Node: "n1", Taints: true, SharedDevices: true, Counters: true, Switched: map[string]bool{first: true}}
	theirs := full
	reset := full
	reset.AllowReset = true
	external := func(o Options, p ...gpu.Partition) Options {
		o.External = map[string][]gpu.Partition{first: p}
		return o
	}
	bare := func(o Options) Options {
		o.Counters = false
		return o
	}
	noParts := func(o Options) Options {
		o.NoPartitions = true
		return o
	}
	theirPart := func(h Held) Held {
		h.External = true
		return h
	}
	gone := gpu.Snapshot{}
	lost := gpu.Snapshot{Problems: []gpu.Problem{{PCIAddress: first, Lost: true, Message: "GPU is lost"}}}
	known := heldPartition("1g.6gb", 2, 1)
	known.GPU = smallGPU().GPUs[0]
	odd := heldPartition("3g.18gb", 1, 3)
	openBy := func(o Options) Options {
		o.Holders = map[string]string{first: "nv-hostengine"}
		return o
	}
	inUse := strings.ReplaceAll(parts+" ", " ", "(in-use) ")
	guest := smallGPU()
	guest.GPUs[0].VGPU, guest.GPUs[0].MIG = true, gpu.MIG{}

	for name, tc := range map[string]struct {
		snapshot gpu.Snapshot
		o        Options
		want     string
		// sets is how many counters the GPU has, 0 where it needs none; warnings lists the States of the warnings, "-" for none.
		counters int
		warnings string
	}{
		"off, and can be switched":                       {smallGPU(switchable), full, uncut + " " + parts, 5, ""},
		"off, and a reset is allowed":                    {smallGPU(), reset, uncut + " " + parts, 5, ""},
		"off, and cannot be switched":                    {smallGPU(), full, uncut, 0, ""},
		"on, by this driver":                             {smallGPU(switchable, enabled), ours, uncut + " " + parts, 5, ""},
		"on, by an administrator":                        {smallGPU(switchable, enabled), theirs, parts, 5, "-"},
		"on, by an administrator, under a claim":         {smallGPU(enabled), with(theirs, heldWhole(h100(0))), uncut + "(mig-mode) " + parts, 5, "- mig-mode"},
		"off, while DCGM has the GPU open":               {smallGPU(switchable), openBy(full), uncut + " " + inUse, 5, "in-use"},
		"off for good, while DCGM has the GPU open":      {smallGPU(), openBy(full), uncut, 0, ""},
		"on, while DCGM has the GPU open":                {smallGPU(switchable, enabled), openBy(ours), uncut + " " + parts, 5, ""},
		"a vGPU":                                         {guest, full, uncut, 0, "-"},
		"to be on":                                       {smallGPU(switchable, pending), full, uncut, 0, "-"},
		"to be off":                                      {smallGPU(enabled, pending), external(ours, externalPartition("1g.6gb", 1, 1, 1)), "1g@1*", 5, "-"},
		"to be off, under a claim":                       {smallGPU(enabled, pending), with(ours, heldPartition("1g.6gb", 2, 1)), "1g@2(mig-mode)", 5, "- mig-mode"},
		"off, misread":                                   {smallGPU(switchable, faulty), full, uncut, 0, "-"},
		"off, misreported":                               {smallGPU(switchable, garbage), full, uncut, 0, "-"},
		"on, misread":                                    {smallGPU(enabled, faulty), ours, "", 0, "mig-mode"},
		"on, misread, under claims":                      {smallGPU(enabled, faulty), with(ours, heldPartition("1g.6gb", 2, 1), heldPartition("2g.12gb", 0, 2)), "1g@2(mig-mode) 2g@0(mig-mode)", 4, "mig-mode mig-mode mig-mode"},
		"off, misread, under a claim":                    {smallGPU(faulty), with(full, heldPartition("1g.6gb", 2, 1)), "whole 1g@2(mig-mode)", 4, "- mig-mode"},
		"held as it is":                                  {smallGPU(switchable, enabled), with(ours, heldPartition("1g.6gb", 2, 1)), uncut + " " + parts, 5, ""},
		"held, and its mode gone":                        {smallGPU(), with(full, heldPartition("1g.6gb", 2, 1)), uncut + " 1g@2(mig-mode)", 5, "mig-mode"},
		"held, of a profile that NVML does not name":     {smallGPU(enabled), with(ours, odd), uncut + " " + parts + " 3g@1(unreadable)", 5, "unreadable"},
		"held, GPU gone":                                 {gone, with(full, heldPartition("1g.6gb", 2, 1)), "1g@2(absent)", 4, "absent"},
		"held, GPU gone and known":                       {gone, with(full, known), "1g@2(absent)", 5, "absent"},
		"held, GPU lost, without taints and counters":    {lost, with(Options{}, known, heldPartition("2g.12gb", 0, 2)), "1g@2 2g@0", 0, "lost lost lost"},
		"external":                                       {smallGPU(enabled), external(theirs, externalPartition("2g.12gb", 0, 2, 1)), "1g@3 1g@2 2g@0* 2g@2", 5, "-"},
		"external, on a GPU this driver switched":        {smallGPU(enabled), external(ours, externalPartition("1g.6gb", 1, 1, 1)), "1g@1* 1g@3 1g@2 1g@0 2g@2", 5, ""},
		"external, held":                                 {smallGPU(enabled), with(external(ours, externalPartition("1g.6gb", 1, 1, 1)), theirPart(heldPartition("1g.6gb", 1, 1))), "1g@1* 1g@3 1g@2 1g@0 2g@2", 5, ""},
		"external, held and gone":                        {smallGPU(enabled), with(ours, theirPart(heldPartition("1g.6gb", 1, 1))), "whole 1g@3 1g@2 1g@1(absent) 1g@0 2g@2 2g@0 4g@0", 5, "absent"},
		"external, over a held one":                      {smallGPU(enabled), with(external(ours, externalPartition("1g.6gb", 1, 1, 1)), heldPartition("2g.12gb", 0, 2), heldWhole(h100(0))), "whole(external-partition) 1g@1* 1g@3 1g@2 1g@0 2g@2 2g@0(external-partition)", 5, "external-partition external-partition"},
		"external, without a compute instance":           {smallGPU(enabled), external(ours, externalPartition("2g.12gb", 0, 2, 0)), "1g@3 1g@2 2g@2", 5, "-"},
		"external, with two compute instances":           {smallGPU(enabled), external(ours, externalPartition("2g.12gb", 0, 2, 2)), "1g@3 1g@2 2g@2", 5, "-"},
		"external, of an unknown profile":                {smallGPU(enabled), external(ours, externalPartition("", 1, 2, 1)), "1g@3 1g@0", 5, "-"},
		"external, at an unbelievable place":             {smallGPU(enabled), external(ours, externalPartition("1g.6gb", -1, 0, 1)), "", 0, "-"},
		"partitions switched off":                        {smallGPU(switchable), noParts(full), uncut, 0, ""},
		"partitions switched off, held":                  {smallGPU(switchable, enabled), noParts(with(ours, heldPartition("1g.6gb", 2, 1))), uncut + " 1g@2", 5, ""},
		"partitions switched off, external":              {smallGPU(enabled), noParts(external(theirs, externalPartition("2g.12gb", 0, 2, 1))), "", 0, "-"},
		"partitions switched off, no counters, held":     {smallGPU(switchable, enabled), bare(noParts(with(ours, heldPartition("1g.6gb", 2, 1)))), "1g@2", 0, ""},
		"no counters":                                    {smallGPU(switchable), bare(full), uncut, 0, ""},
		"no counters, held":                              {smallGPU(switchable, enabled), bare(with(ours, heldPartition("1g.6gb", 2, 1), heldPartition("2g.12gb", 0, 2))), "1g@2 2g@0", 0, ""},
		"no counters, held whole":                        {smallGPU(switchable), bare(with(full, heldWhole(h100(0)))), uncut, 0, ""},
		"no counters, external":                          {smallGPU(enabled), bare(external(ours, externalPartition("1g.6gb", 1, 1, 1), externalPartition("2g.12gb", 2, 2, 1))), "1g@1* 2g@2*", 0, ""},
		"no counters, external without compute instance": {smallGPU(enabled), bare(external(ours, externalPartition("1g.6gb", 1, 1, 0))), "", 0, "-"},
		"no counters, external over a held one":          {smallGPU(enabled), bare(with(external(ours, externalPartition("1g.6gb", 1, 1, 1), externalPartition("1g.6gb", 3, 1, 1)), heldPartition("2g.12gb", 0, 2))), "1g@3* 2g@0(external-partition)", 0, "external-partition"},
		"no counters, external under a held whole":       {smallGPU(enabled), bare(with(external(ours, externalPartition("1g.6gb", 1, 1, 1)), heldWhole(h100(0)))), "whole(external-partition)", 0, "external-partition"},
		"no counters, the mode external":                 {smallGPU(enabled), bare(theirs), "", 0, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			p, warnings := Build(tc.snapshot, nil, tc.o)
			if diff := cmp.Diff(inOrder(tc.want), deviceList(p)); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			counters := 0
			for _, s := range p.Slices {
				for _, set := range s.SharedCounters {
					counters += len(set.Counters)
				}
			}
			if counters != tc.counters {
				t.Errorf("%d counters, want %d", counters, tc.counters)
			}
			var states []string
			for _, w := range warnings {
				states = append(states, ordered.Or(string(w.State), "-"))
			}
			slices.Sort(states)
			if got := strings.Join(states, " "); got != tc.warnings {
				t.Errorf("warnings %q (%+v), want %q", got, warnings, tc.warnings)
			}
			checkAPILimits(t, p)
		})
	}
}

func TestBuild_GPUWithheld_TaintsAllDevices(t *testing.T) {
	conditions := map[string]Condition{first: {State: Withheld, Message: "a record cannot be read"}}
	p, _ := Build(smallGPU(switchable), conditions, full)
	for _, name := range strings.Fields(deviceList(p)) {
		if !strings.HasSuffix(name, "(withheld)") {
			t.Errorf("%s is available to new claims", name)
		}
	}
	if n := len(strings.Fields(deviceList(p))); n != 8 {
		t.Errorf("%d devices, want 8", n)
	}
	o := full
	o.Taints = false
	if p, _ = Build(smallGPU(switchable), conditions, o); deviceList(p) != "" {
		t.Errorf("without taints there is %s", deviceList(p))
	}
}

// checkAPILimits says what the API would refuse, and what a scheduler could trip over.
func checkAPILimits(t *testing.T, p Pool) {
	t.Helper()
	sets := map[string]map[string]resourceapi.Counter{}
	for _, s := range p.Slices {
		if len(s.SharedCounters) > 0 && len(s.Devices) > 0 || len(s.SharedCounters) > resourceapi.ResourceSliceMaxCounterSets ||
			len(s.Devices) > resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures {
			t.Errorf("a slice has %d devices and %d counter sets", len(s.Devices), len(s.SharedCounters))
		}
		for _, set := range s.SharedCounters {
			if len(set.Counters) == 0 || len(set.Counters) > resourceapi.ResourceSliceMaxCountersPerCounterSet || len(set.Name) > 63 || sets[set.Name] != nil {
				t.Errorf("counter set %s with %d counters", set.Name, len(set.Counters))
			}
			sets[set.Name] = set.Counters
		}
	}
	seen := map[string]bool{}
	for _, s := range p.Slices {
		for _, d := range s.Devices {
			if n := len(d.Attributes) + len(d.Capacity); n > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
				t.Errorf("%s has %d attributes and capacities", d.Name, n)
			}
			if seen[d.Name] || len(d.Name) > 63 {
				t.Errorf("device name %q is used twice or too long", d.Name)
			}
			seen[d.Name] = true
			if len(d.ConsumesCounters) > resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice {
				t.Errorf("%s consumes %d counter sets", d.Name, len(d.ConsumesCounters))
			}
			for _, c := range d.ConsumesCounters {
				if len(c.Counters) == 0 || len(c.Counters) > resourceapi.ResourceSliceMaxCountersPerDeviceCounterConsumption {
					t.Errorf("%s consumes %d counters", d.Name, len(c.Counters))
				}
				for name, n := range c.Counters {
					total, ok := sets[c.CounterSet][name]
					if !ok || total.Value.Cmp(n.Value) < 0 {
						t.Errorf("%s consumes %v of %s/%s, of which there is %v", d.Name, n.Value.String(), c.CounterSet, name, total.Value.String())
					}
				}
			}
			text, err := json.Marshal(d)
			if err != nil {
				t.Error(err)
			}
			if len(text) > 2400 {
				t.Errorf("%s has %d bytes", d.Name, len(text))
			}
		}
	}
}

func TestBuild_MIGBoards_StayWithinAPILimits(t *testing.T) {
	for name, m := range map[string]gpu.MIG{"H100": layouttest.H100(), "A100": layouttest.A100(), "A30": layouttest.A30(), "12 slices": layouttest.RTXPRO6000()} {
		for _, gpus := range []int{8, 16} {
			s := node(gpus)
			for i := range s.GPUs {
				s.GPUs[i].MIG = m
			}
			o := full
			o.AllowReset = true
			p, warnings := Build(s, nil, o)
			checkAPILimits(t, p)
			if len(warnings) > 0 {
				t.Errorf("%s: %+v", name, warnings)
			}
			text, err := json.Marshal(p.Slices)
			if err != nil {
				t.Fatal(err)
			}
			devices := 0
			for _, s := range p.Slices {
				devices += len(s.Devices)
			}
			t.Logf("%d × %s: %d devices in %d slices, %d bytes a device, %d in all", gpus, name, devices, len(p.Slices), len(text)/devices, len(text))
			if len(text)/devices > 1800 || gpus == 8 && len(p.Slices) > 12 {
				t.Errorf("%d × %s: %d bytes a device in %d slices, the budget is 1800 in 12", gpus, name, len(text)/devices, len(p.Slices))
			}
		}
	}
}

func TestBuild_ExternalPartition_TakesItsEngines(t *testing.T) {
	s := node(1)
	s.GPUs[0].MIG = layouttest.H100()
	enabled(&s.GPUs[0].MIG)
	o := full
	o.External = map[string][]gpu.Partition{first: {externalPartition("1g.10gb+me", 0, 1, 1)}}
	p, _ := Build(s, nil, o)
	for _, n := range names(p) {
		if strings.Contains(n, "-me-") && !strings.HasSuffix(n, "-me-0") || strings.Contains(n, "7g") {
			t.Errorf("%s is published, and the only OFA engine is in use", n)
		}
	}
	if _, ok := p.Slices[0].SharedCounters[0].Counters["ofa-engines"]; ok {
		t.Error("there is an OFA engine to count")
	}
	checkAPILimits(t, p)
}

func TestBuild_ManyPlacements_SplitsSlices(t *testing.T) {
	s := node(1)
	s.GPUs[0].MIG = gpu.MIG{Capable: true, Switchable: true}
	for i := range 5 {
		p := layouttest.A30().Profiles[0]
		p.ID, p.Name, p.Placements, p.Instances = i, fmt.Sprintf("1g.%dgb", i+1), nil, 20
		for start := range 20 {
			p.Placements = append(p.Placements, gpu.Placement{Start: start, Size: 1})
		}
		s.GPUs[0].MIG.Profiles = append(s.GPUs[0].MIG.Profiles, p)
	}
	p, warnings := Build(s, nil, full)
	checkAPILimits(t, p)
	if len(p.Slices) != 5 || len(p.Slices[0].Devices) != 1 || len(p.Slices[2].Devices) != 64 || len(p.Slices[3].Devices) != 36 || len(warnings) > 0 {
		t.Errorf("%d slices, warnings %v", len(p.Slices), warnings)
	}
}

func TestBuild_ExternalPartition_PublishesAttributes(t *testing.T) {
	s := smallGPU(enabled)
	o := full
	o.External = map[string][]gpu.Partition{first: {externalPartition("1g.6gb", 1, 1, 1)}}
	p, _ := Build(s, nil, o)
	d := p.Slices[1].Devices[0]
	want := map[string]string{
		"type": "mig", "uuid": "MIG-1g.6gb-0", "parentUUID": s.GPUs[0].UUID, "profile": "1g.6gb", "productName": s.GPUs[0].ProductName,
		"brand": "Nvidia", "architecture": "Hopper", "addressingMode": "HMM", "cudaComputeCapability": "9.0.0", "driverVersion": "580.126.9",
		"cudaDriverVersion": "13.0.0", "resource.kubernetes.io/pciBusID": first, "resource.kubernetes.io/pcieRoot": "pci0000:0f",
		"resource.kubernetes.io/numaNode": "0",
		"memory":                          "5952Mi", "multiprocessors": "14", "copyEngines": "1", "decoders": "0", "encoders": "0", "jpegEngines": "0", "ofaEngines": "0",
		"isolation": "hardware",
	}
	got := map[string]string{}
	for name, a := range d.Attributes {
		switch {
		case a.StringValue != nil:
			got[string(name)] = *a.StringValue
		case a.VersionValue != nil:
			got[string(name)] = *a.VersionValue
		case a.IntValue != nil:
			got[string(name)] = fmt.Sprint(*a.IntValue)
		}
	}
	for name, c := range d.Capacity {
		got[string(name)] = c.Value.String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
