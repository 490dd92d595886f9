// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
)

var (
	h100 = gpu.GPU{Index: 0, UUID: "GPU-0", ProductName: "NVIDIA H100 80GB HBM3", MemoryBytes: 81559 << 20, MPSCapable: true, MIG: gpu.MIG{
		Profiles: []gpu.Profile{{Name: "1g.10gb", Slices: 1, MemoryBytes: 9856 << 20}, {Name: "7g.80gb", Slices: 7, MemoryBytes: 81152 << 20}},
	}}
	t4 = gpu.GPU{Index: 1, UUID: "GPU-1", ProductName: "Tesla T4", MemoryBytes: 15360 << 20, MPSCapable: true}
)

func TestParse_ConfigFiles_GivePolicies(t *testing.T) {
	const slicing, mps = v1beta1.StrategyTimeSlicing, v1beta1.StrategyMPS
	for name, c := range map[string]struct {
		file    string
		h100    Policy
		t4      Policy
		mig     Policy
		ignored []string
	}{
		"nothing": {},
		"the device plugin's, time-slicing": {
			file: `
version: v1
flags:
  migStrategy: mixed
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
`,
			h100:    Policy{Strategy: slicing, Replicas: 10, FailMany: true, Renamed: true},
			t4:      Policy{Strategy: slicing, Replicas: 10, FailMany: true, Renamed: true},
			ignored: []string{"flags"},
		},
		"the device plugin's, mps": {
			file: "version: v1\nsharing:\n  mps:\n    resources:\n    - name: nvidia.com/gpu\n      rename: nvidia.com/gpu.shared\n      devices: [\"GPU-1\"]\n      replicas: 4\n",
			t4:   Policy{Strategy: mps, Replicas: 4}, ignored: []string{"sharing.mps.resources[0].rename"},
		},
		"mixed MIG": {
			file: "sharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/mig-1g.10gb, replicas: 4}\n",
			mig:  Policy{Strategy: slicing, Replicas: 4},
		},
		"by model, with a bound": {
			file: "sharing: {maxShares: 20, timeSlicing: {interval: Long, resources: [{name: gpu, products: ['*T4*'], maxShares: 8, replicas: 2}]}}",
			h100: Policy{MaxShares: 20}, t4: Policy{Strategy: slicing, Replicas: 2, MaxShares: 8, Interval: v1beta1.IntervalLong}, mig: Policy{MaxShares: 20},
		},
		"by a label's spelling, index and node": {
			file: "sharing: {mps: {resources: [{name: nvidia.com/gpu, products: [NVIDIA-H100-80GB-HBM3], devices: [0], nodes: ['gpu-*'], replicas: 3}]}}",
			h100: Policy{Strategy: mps, Replicas: 3},
		},
		"another node's": {file: "sharing: {mps: {resources: [{name: nvidia.com/gpu, nodes: [other], replicas: 3}]}}"},
		"a number of devices": {
			file: "sharing: {mps: {resources: [{name: nvidia.com/gpu, devices: 1, replicas: 3}]}}", h100: Policy{Strategy: mps, Replicas: 3},
		},
		"for all in short": {
			file: "sharing: {timeSlicing: {replicas: 5}}",
			h100: Policy{Strategy: slicing, Replicas: 5}, t4: Policy{Strategy: slicing, Replicas: 5}, mig: Policy{Strategy: slicing, Replicas: 5},
		},
		"a strategy for fractions": {file: "sharing: {strategy: TimeSlicing}", h100: Policy{Strategy: slicing}, t4: Policy{Strategy: slicing}, mig: Policy{Strategy: slicing}},
		"nothing is shared":        {file: "sharing: {strategy: None}", h100: Policy{None: true}, t4: Policy{None: true}, mig: Policy{None: true}},
		"only partitions of a model are shared": {
			file: "{publish: [{products: ['*H100*'], shareable: Partitions}], sharing: {mps: {replicas: 2}}}",
			h100: Policy{Strategy: mps, Replicas: 2, None: true}, t4: Policy{Strategy: mps, Replicas: 2}, mig: Policy{Strategy: mps, Replicas: 2},
		},
		"only GPUs of the node are shared": {file: "publish: [{nodes: [gpu-7], shareable: GPUs}, {shareable: None}]", mig: Policy{None: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s, ignored, err := Parse([]byte(c.file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]Policy{c.h100, c.t4, c.mig}, []Policy{s.Policy("gpu-7", h100, ""), s.Policy("gpu-7", t4, ""), s.Policy("gpu-7", h100, "1g.10gb")}); diff != "" {
				t.Errorf("policies of H100, T4 and 1g.10gb (-want +got):\n%s", diff)
			}
			if !slices.Equal(ignored, c.ignored) {
				t.Errorf("ignored %v, want %v", ignored, c.ignored)
			}
		})
	}
}

func TestParse_SettingWrong_NamesField(t *testing.T) {
	for file, want := range map[string]string{
		"[":                         "not YAML",
		"sharing: {}\nsharing: {}":  "not YAML",
		"version: v2":               `version: "v2"`,
		"sharing: {timeSlices: {}}": `unknown field "timeSlices"`,
		"sharing: 5":                "sharing: a number",
		"sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}":                               "sharing.timeSlicing.resources[0].replicas: missing",
		"sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 0}]}}":                  "replicas: 0",
		"sharing: {timeSlicing: {resources: [{name: amd.com/gpu, replicas: 2}]}}":                     `"amd.com/gpu"`,
		"sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: [x]}]}}":    "devices",
		"sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: -1}]}}":     "devices",
		"sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, products: ['[']}]}}": "not a valid pattern",
		"sharing: {timeSlicing: {interval: Longer}}":                                                  "interval",
		"sharing: {mps: {interval: Long}}":                                                            "only timeSlicing has this field",
		"sharing: {maxShares: 49}":                                                                    "1 to 48",
		"sharing: {strategy: Both}":                                                                   `"Both"`,
		"sharing: {timeSlicing: {replicas: 2}, mps: {replicas: 2}}":                                   "remove one",
		"publish: {profiles: None}":                                                                   "publish",
		"publish: [{profiles: Some}]":                                                                 "publish[0].profiles: \"Some\"",
		"publish: [{}, {profiles: []}]":                                                               "publish[1].profiles: []",
		"publish: [{profiles: [1]}]":                                                                  "publish[0].profiles: [1]",
		"publish: [{profiles: ['']}]":                                                                 "publish[0].profiles: \"\" is not a valid pattern",
		"publish: [{products: ['[']}]":                                                                "publish[0].products: \"[\" is not a valid pattern",
		"publish: [{monitors: Some}]":                                                                 "publish[0].monitors: \"Some\"",
		"publish: [{groups: Some}]":                                                                   "publish[0].groups: \"Some\"",
		"publish: [{shareable: Maybe}]":                                                               "publish[0].shareable: \"Maybe\"",
		"publish: [{profile: None}]":                                                                  "unknown field",
	} {
		if _, _, err := Parse([]byte(file)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sharing.file") {
			t.Errorf("%s: %v, want %q in it", file, err, want)
		}
	}
}

func TestOfferOf_Policies_GiveShares(t *testing.T) {
	const slicing, mps = v1beta1.StrategyTimeSlicing, v1beta1.StrategyMPS
	for name, c := range map[string]struct {
		policy  Policy
		gpu     gpu.GPU
		profile string
		mps     bool
		want    Offer
	}{
		"a GPU":                       {Policy{}, h100, "", true, Offer{mps, 81559 << 20, 0, 48, false}},
		"without MPS on the node":     {Policy{}, h100, "", false, Offer{slicing, 81559 << 20, 0, 48, false}},
		"a vGPU":                      {Policy{}, gpu.GPU{MemoryBytes: 10 << 30}, "", true, Offer{slicing, 10 << 30, 0, 48, false}},
		"a quarter, taking turns":     {Policy{Strategy: slicing, Replicas: 4}, h100, "", true, Offer{slicing, 20389 << 20, 0, 4, false}},
		"a quarter by MPS":            {Policy{Strategy: mps, Replicas: 4}, h100, "", true, Offer{mps, 20389 << 20, 25, 4, false}},
		"a hundredth, taking turns":   {Policy{Strategy: slicing, Replicas: 100}, h100, "", true, Offer{slicing, 815 << 20, 0, 100, false}},
		"a hundredth by MPS":          {Policy{Strategy: mps, Replicas: 100}, h100, "", true, Offer{mps, 815 << 20, 1, 48, false}},
		"renamed, a whole GPU":        {Policy{Renamed: true}, h100, "", true, Offer{mps, 81559 << 20, 0, 48, false}},
		"renamed shares":              {Policy{Strategy: slicing, Replicas: 4, Renamed: true}, h100, "", true, Offer{slicing, 20389 << 20, 0, 4, true}},
		"a bound":                     {Policy{MaxShares: 7}, h100, "", true, Offer{mps, 81559 << 20, 0, 7, false}},
		"a small partition has few":   {Policy{}, h100, "1g.10gb", true, Offer{mps, 9856 << 20, 0, 6, false}},
		"the largest partition, many": {Policy{}, h100, "7g.80gb", true, Offer{mps, 81152 << 20, 0, 48, false}},
	} {
		got, ok := OfferOf(c.policy, c.gpu, c.profile, c.mps)
		if diff := cmp.Diff(c.want, got); diff != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, c := range map[string]struct {
		policy  Policy
		gpu     gpu.GPU
		profile string
	}{
		"not shared by policy": {Policy{None: true}, h100, ""}, "no memory known": {Policy{}, gpu.GPU{}, ""}, "no such profile": {Policy{}, h100, "2g.20gb"},
	} {
		if o, ok := OfferOf(c.policy, c.gpu, c.profile, true); ok {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, devices: [0, GPU-1], replicas: 2}]}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, _, err := Parse(data)
		if err != nil {
			return
		}
		for _, g := range []gpu.GPU{h100, t4, {}} {
			if p := s.Policy("n", g, ""); p.Replicas < 0 || p.Replicas > maxReplicas || p.MaxShares < 0 || p.MaxShares > maxClients {
				t.Errorf("%+v", p)
			}
			s.Policy("n", g, "1g.10gb")
		}
	})
}
