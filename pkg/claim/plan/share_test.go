// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// shared is a node with two H100, a T4 and a GPU without MPS.
var shared = Node{Driver: driver, Pool: "n/gpu", Policy: noSettings, Snapshot: gpu.Snapshot{
	Driver: gpu.Driver{Version: "580.126.09"},
	GPUs: []gpu.GPU{
		{PCIAddress: "0000:1b:00.0", UUID: "GPU-0", MPSCapable: true, MemoryBytes: 81559 << 20, ReservedBytes: 454 << 20, MIG: gpu.MIG{
			Capable: true, Profiles: []gpu.Profile{{Name: "3g.40gb", Slices: 3, MemoryBytes: 40192 << 20, Placements: []gpu.Placement{{Start: 4, Size: 4}}}},
		}},
		{PCIAddress: "0000:43:00.0", UUID: "GPU-1", MPSCapable: true, MemoryBytes: 81559 << 20, ReservedBytes: 454 << 20},
		{PCIAddress: "0000:52:00.0", UUID: "GPU-2", ProductName: "GRID A100-10C", MemoryBytes: 10 << 30},
	},
}}

// taken is a result with a share of so much memory and, if given, compute.
func taken(device, memory string, compute ...string) resourceapi.DeviceRequestAllocationResult {
	return result(device, func(r *resourceapi.DeviceRequestAllocationResult) {
		id := types.UID("s-" + device)
		r.ShareID = &id
		r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}
		if len(compute) > 0 {
			r.ConsumedCapacity["compute"] = resource.MustParse(compute[0])
		}
	})
}

const (
	head     = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":`
	byMPS    = head + `{"strategy":"MPS"}}`
	byTime   = head + `{"strategy":"TimeSlicing"}}`
	byLong   = head + `{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`
	byLimits = head + `{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":30,"defaultPinnedDeviceMemoryLimit":"5Gi","multiUser":false}}}`
	ofMIG    = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing"}}`

	fromClass = resourceapi.AllocationConfigSourceClass
	fromClaim = resourceapi.AllocationConfigSourceClaim

	first, second, guest = "gpu-0000-1b-00-0", "gpu-0000-43-00-0", "gpu-0000-52-00-0"
	part                 = "gpu-0000-1b-00-0-mig-3g-40gb-4"
)

func configs(c ...resourceapi.DeviceAllocationConfiguration) []resourceapi.DeviceAllocationConfiguration {
	return c
}

func TestMake_Share_HasMemoryAndSharing(t *testing.T) {
	const mps, slicing = v1beta1.StrategyMPS, v1beta1.StrategyTimeSlicing
	tenOf := Share{MemoryBytes: 10 << 30, DeviceMemoryBytes: 81559 << 20, MaxShares: 48, UsableBytes: 10182 << 20}
	for name, c := range map[string]struct {
		result  resourceapi.DeviceRequestAllocationResult
		configs []resourceapi.DeviceAllocationConfiguration
		policy  sharing.Policy
		share   Share
		sharing Sharing
		steps   []string
	}{
		"all of it": {result: taken(first, "81559Mi")},
		"a share, and the node has MPS": {
			result: taken(first, "10Gi"), share: tenOf, sharing: Sharing{Strategy: mps, MemoryLimit: new(uint64(10182 << 20))}, steps: []string{sharing.MPSExecutor},
		},
		"a share with compute": {
			result: taken(first, "10Gi", "40"), share: Share{MemoryBytes: 10 << 30, DeviceMemoryBytes: 81559 << 20, Compute: 40, MaxShares: 48, UsableBytes: 10182 << 20},
			sharing: Sharing{Strategy: mps, MemoryLimit: new(uint64(10182 << 20)), ActiveThreadPercentage: 40}, steps: []string{sharing.MPSExecutor},
		},
		"a share of a GPU that MPS cannot limit": {
			result: taken(guest, "1Gi"), share: Share{MemoryBytes: 1 << 30, DeviceMemoryBytes: 10 << 30, MaxShares: 48, UsableBytes: 1 << 30}, sharing: Sharing{Strategy: slicing},
		},
		"the node's setting": {
			result: taken(first, "20389Mi"), policy: sharing.Policy{Strategy: slicing, Replicas: 4, Interval: v1beta1.IntervalShort},
			share:   Share{MemoryBytes: 20389 << 20, DeviceMemoryBytes: 81559 << 20, MaxShares: 4, UsableBytes: 20275 << 20},
			sharing: Sharing{Strategy: slicing, Timed: true, Interval: 1}, steps: []string{sharing.TimeSliceExecutor},
		},
		"the class's parameters": {
			result: taken(first, "10Gi"), configs: configs(config(fromClass, byTime)), share: tenOf,
			sharing: Sharing{Strategy: slicing, Timed: true}, steps: []string{sharing.TimeSliceExecutor},
		},
		"the claim's replace the class's": {
			result: taken(first, "10Gi"), configs: configs(config(fromClass, byTime), config(fromClaim, byLong)), share: tenOf,
			sharing: Sharing{Strategy: slicing, Timed: true, Interval: 3}, steps: []string{sharing.TimeSliceExecutor},
		},
		"limits below the share's": {
			result: taken(first, "10Gi", "40"), configs: configs(config(fromClaim, byLimits)),
			share:   Share{MemoryBytes: 10 << 30, DeviceMemoryBytes: 81559 << 20, Compute: 40, MaxShares: 48, UsableBytes: 10182 << 20},
			sharing: Sharing{Strategy: mps, MemoryLimit: new(uint64(5 << 30)), ActiveThreadPercentage: 30, MultiUser: new(false)}, steps: []string{sharing.MPSExecutor},
		},
		"a whole GPU by MPS": {
			result: taken(first, "81559Mi"), configs: configs(config(fromClaim, byMPS)), sharing: Sharing{Strategy: mps}, steps: []string{sharing.MPSExecutor},
		},
		"a whole GPU of a server without shares, by time": {
			result: result(first), configs: configs(config(fromClaim, byLong)), sharing: Sharing{Strategy: slicing, Timed: true, Interval: 3}, steps: []string{sharing.TimeSliceExecutor},
		},
		"a share of a partition": {
			result: taken(part, "19Gi"), share: Share{MemoryBytes: 19 << 30, DeviceMemoryBytes: 40192 << 20, MaxShares: 48, UsableBytes: 19 << 30},
			sharing: Sharing{Strategy: mps, MemoryLimit: new(uint64(19 << 30))}, steps: []string{MIGExecutor, sharing.MPSExecutor},
		},
		"a partition takes turns, with no time slice to set": {
			result: taken(part, "19Gi"), configs: configs(config(fromClass, byMPS), config(fromClaim, ofMIG)),
			share:   Share{MemoryBytes: 19 << 30, DeviceMemoryBytes: 40192 << 20, MaxShares: 48, UsableBytes: 19 << 30},
			sharing: Sharing{Strategy: slicing}, steps: []string{MIGExecutor},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared
			n.Policy = func(gpu.GPU, string) sharing.Policy { return c.policy }
			p, err := Make(claim(c.configs, c.result), n)
			if err != nil {
				t.Fatal(err)
			}
			var steps []string
			for _, s := range p.Steps {
				steps = append(steps, s.Executor)
			}
			type got struct {
				Share   Share
				Sharing Sharing
				Steps   []string
			}
			want := got{c.share, c.sharing, c.steps}
			want.Sharing.OwnSharedMemory = c.sharing.Strategy == mps // The driver of the test's node is 580.
			if diff := cmp.Diff(want, got{p.Devices[0].Share, p.Devices[0].Sharing, steps}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			n.Snapshot.Driver.Version = "570.172.08"
			if p, err = Make(claim(c.configs, c.result), n); err != nil || p.Devices[0].Sharing.OwnSharedMemory {
				t.Errorf("MPS of an older driver has files in /dev/shm, and the container keeps its own (%v)", err)
			}
			n.Snapshot.GPUs = slices.Clone(n.Snapshot.GPUs)
			for i := range n.Snapshot.GPUs {
				n.Snapshot.GPUs[i].MemoryLimits = true
			}
			limit := uint64(0)
			if p.Devices[0].Kind == gpu.KindGPU { // The driver has no such limits for partitions.
				limit = c.share.UsableBytes
			}
			if p, err = Make(claim(c.configs, c.result), n); err != nil || p.Devices[0].Sharing.ContainerLimit != limit {
				t.Errorf("the container's limit is %d, want %d (%v)", p.Devices[0].Sharing.ContainerLimit, limit, err)
			}
		})
	}
}

// of gives a result to another request, as another share.
func of(request string, r resourceapi.DeviceRequestAllocationResult) resourceapi.DeviceRequestAllocationResult {
	r.Request, r.ShareID = request, new(*r.ShareID+types.UID(request))
	return r
}

func TestMake_SeveralShares_LimitsEachRequest(t *testing.T) {
	ten, twenty := uint64(10182<<20), uint64(20365<<20)
	for name, c := range map[string]struct {
		results []resourceapi.DeviceRequestAllocationResult
		limits  []uint64
		threads []int
		steps   []Step
	}{
		"two requests of one GPU": {
			[]resourceapi.DeviceRequestAllocationResult{of("a", taken(first, "10Gi", "20")), of("b", taken(first, "20Gi", "30"))},
			[]uint64{ten, twenty}, []int{20, 30}, []Step{{sharing.MPSExecutor, "0000:1b:00.0", 0, nil}},
		},
		"two requests of two GPUs": {
			[]resourceapi.DeviceRequestAllocationResult{of("a", taken(first, "10Gi")), of("b", taken(second, "20Gi"))},
			[]uint64{ten, twenty}, []int{0, 0}, []Step{{sharing.MPSExecutor, "0000:1b:00.0", 0, nil}, {sharing.MPSExecutor, "0000:43:00.0", 1, nil}},
		},
		"two requests of a partition": {
			[]resourceapi.DeviceRequestAllocationResult{of("a", taken(part, "1Gi")), of("b", taken(part, "2Gi"))},
			[]uint64{1 << 30, 2 << 30}, []int{0, 0}, []Step{{MIGExecutor, "0000:1b:00.0", 0, nil}, {sharing.MPSExecutor, "0000:1b:00.0", 0, nil}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Make(claim(nil, c.results...), shared)
			if err != nil || p.Refused != nil {
				t.Fatal(err, p.Refused)
			}
			var limits []uint64
			var threads []int
			for _, d := range p.Devices {
				limits, threads = append(limits, *d.Sharing.MemoryLimit), append(threads, d.Sharing.ActiveThreadPercentage)
			}
			if diff := cmp.Diff([]any{c.limits, c.threads, c.steps}, []any{limits, threads, p.Steps}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMake_AnyMemoryConsumed_LimitedOrRefused plays schedulers that charge what was never offered.
func TestMake_AnyMemoryConsumed_LimitedOrRefused(t *testing.T) {
	limited, refused := 0, 0
	for _, suffix := range []string{"", "n", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "Ei", "e30"} {
		for _, n := range []string{"0", "1", "-1", "1.5", "15", "16", "-10", "81558", "99999999999999999999", "-99999999999999999999"} {
			for _, device := range []string{first, guest, part} {
				r := taken(device, n+suffix)
				p, err := Make(claim(configs(config(fromClaim, byMPS)), r), shared)
				if device == guest {
					p, err = Make(claim(nil, r), shared)
				}
				if err != nil {
					t.Fatalf("%s%s: %v", n, suffix, err)
				}
				charged, d := r.ConsumedCapacity["memory"], p.Devices[0]
				switch {
				case !d.Partial():
					if charged.CmpInt64(9<<30) < 0 {
						t.Errorf("%s%s is the whole of %s", n, suffix, device)
					}
				case p.Refused != nil:
					refused++
					if claimerror.KindOf(p.Refused) != claimerror.Permanent || !strings.Contains(p.Refused.Error(), "capacity.requests.memory: "+charged.String()) ||
						charged.CmpInt64(sharing.MinMemory) >= 0 {
						t.Errorf("%s%s: %v", n, suffix, p.Refused)
					}
				default:
					limited++
					if charged.CmpInt64(int64(d.Share.UsableBytes)) < 0 || d.Share.UsableBytes < sharing.Step {
						t.Errorf("%s%s of %s are %d bytes to use", n, suffix, device, d.Share.UsableBytes)
					}
					if d.Sharing.Strategy == v1beta1.StrategyMPS && (d.Sharing.MemoryLimit == nil || *d.Sharing.MemoryLimit != d.Share.UsableBytes) {
						t.Errorf("%s%s of %s is limited to %v", n, suffix, device, d.Sharing.MemoryLimit)
					}
				}
			}
		}
	}
	if limited < 10 || refused < 100 {
		t.Errorf("%d were limited and %d refused, which proves little", limited, refused)
	}
}

// TestMake_AnyComputeConsumed_LimitedOrRefused does the same with compute. A negative amount would leave more than all SMs for
// other claims.
func TestMake_AnyComputeConsumed_LimitedOrRefused(t *testing.T) {
	limited, refused := 0, 0
	for _, suffix := range []string{"", "n", "m", "k", "Ki", "Gi", "Ei", "e30"} {
		for _, n := range []string{"0", "1", "-1", "99", "100", "101", "-100", "99999999999999999999", "-99999999999999999999"} {
			p, err := Make(claim(configs(config(fromClaim, byMPS)), taken(first, "10Gi", n+suffix)), shared)
			if err != nil {
				t.Fatalf("%s%s: %v", n, suffix, err)
			}
			charged := resource.MustParse(n + suffix)
			d, percent := p.Devices[0], charged.CmpInt64(0) >= 0 && charged.CmpInt64(100) <= 0
			switch {
			case p.Refused != nil:
				refused++
				if percent || claimerror.KindOf(p.Refused) != claimerror.Permanent {
					t.Errorf("%s%s: %v", n, suffix, p.Refused)
				}
			case !percent:
				t.Errorf("%s%s are %d %% of the SMs", n, suffix, d.Share.Compute)
			default:
				limited++
				if charged.CmpInt64(int64(d.Share.Compute)) > 0 || d.Sharing.ActiveThreadPercentage != d.Share.Compute {
					t.Errorf("%s%s: %d are reserved, and the limit is %d", n, suffix, d.Share.Compute, d.Sharing.ActiveThreadPercentage)
				}
			}
		}
	}
	if limited < 5 || refused < 20 {
		t.Errorf("%d were limited and %d refused, which proves little", limited, refused)
	}
}

// TestMake_ShareWithoutAmounts_Refused plays a scheduler that gives a share and charges nothing for it.
func TestMake_ShareWithoutAmounts_Refused(t *testing.T) {
	for _, device := range []string{first, part} {
		r := taken(device, "10Gi")
		r.ConsumedCapacity = nil
		if p, err := Make(claim(nil, r), shared); err != nil || !p.Devices[0].Partial() || claimerror.KindOf(p.Refused) != claimerror.Permanent {
			t.Errorf("%s: %+v, %v", device, p, err)
		}
	}
}

// TestMake_LimitByPosition_CountsDevicesOfTheConfig has the limit of device 0 in the configuration of the second request.
func TestMake_LimitByPosition_CountsDevicesOfTheConfig(t *testing.T) {
	limited := head + `{"strategy":"MPS","mpsConfig":{"defaultPerDevicePinnedMemoryLimit":{"0":"5Gi"}}}}`
	p, err := Make(claim(configs(config(fromClaim, byTime, "a"), config(fromClaim, limited, "b")), of("a", taken(first, "10Gi")), of("b", taken(second, "10Gi"))), shared)
	if err != nil || p.Refused != nil {
		t.Fatal(err, p.Refused)
	}
	if got := p.Devices[1].Sharing.MemoryLimit; got == nil || *got != 5<<30 || p.Devices[0].Sharing.MemoryLimit != nil {
		t.Errorf("limits %v and %v, want none and 5 GiB", p.Devices[0].Sharing.MemoryLimit, got)
	}
}

func TestMake_InvalidShare_ReturnsError(t *testing.T) {
	twice := taken(second, "10Gi")
	for name, c := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		change func(*Node)
		texts  []string
	}{
		"MPS of two GPUs": {claim(nil, taken(first, "10Gi"), twice), nil, []string{first, "one device only"}},
		"shares that disagree": {claim(configs(config(fromClaim, byTime, "a"), config(fromClaim, byMPS, "b")), of("a", taken(first, "10Gi")), of("b", taken(first, "10Gi"))), nil,
			[]string{`request "a"`, "shares it by TimeSlicing, this claim wants MPS"}},
		"a share beside the whole": {claim(nil, of("a", taken(first, "81559Mi")), of("b", taken(first, "1Gi"))), nil, []string{"the two overlap"}},
		"more shares than the device has": {claim(nil, of("a", taken(first, "1Gi")), of("b", taken(first, "1Gi"))), func(n *Node) {
			n.Policy = func(gpu.GPU, string) sharing.Policy { return sharing.Policy{MaxShares: 1} }
		}, []string{"it has 2 shares, and room for 1"}},
		"MPS where the GPU has none":  {claim(configs(config(fromClaim, byMPS)), taken(guest, "1Gi")), nil, []string{"GRID A100-10C", "compute capability 7.0"}},
		"MPS where the node has none": {claim(configs(config(fromClaim, byMPS)), taken(first, "1Gi")), func(n *Node) { n.NoMPS = "switched off" }, []string{"switched off", "TimeSlicing"}},
		"parameters of another kind":  {claim(configs(config(fromClaim, ofMIG, "gpu")), taken(first, "1Gi")), nil, []string{"MigDeviceConfig is not for"}},
		"a limit above the device's":  {claim(configs(config(fromClaim, head+`{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"81Gi"}}}`)), taken(first, "1Gi")), nil, []string{"more than the device has"}},
		"two shares where one may be": {claim(configs(config(fromClaim, byTime)), taken(first, "1Gi"), twice), func(n *Node) {
			n.Policy = func(gpu.GPU, string) sharing.Policy { return sharing.Policy{FailMany: true} }
		}, []string{"failRequestsGreaterThanOne"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := shared
			if c.change != nil {
				c.change(&n)
			}
			p, err := Make(c.claim, n)
			if err == nil {
				err = p.Refused
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, text := range c.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v, want %q in it", err, text)
				}
			}
			if claimerror.KindOf(err) == claimerror.Transient && n.NoMPS == "" {
				t.Errorf("%v is transient", err)
			}
		})
	}
	// A class's parameters may be for other devices than this one.
	if _, err := Make(claim(configs(config(fromClass, ofMIG)), taken(first, "1Gi")), shared); err != nil {
		t.Error(err)
	}
}

func TestDisagrees_DifferentSharing_NamesTheDifference(t *testing.T) {
	device := func(parameters string) Device {
		t.Helper()
		p, err := Make(claim(configs(config(fromClaim, parameters)), taken(first, "10Gi")), shared)
		if err != nil {
			t.Fatal(err)
		}
		return p.Devices[0]
	}
	for _, c := range []struct{ first, second, want string }{
		{byMPS, byMPS, ""}, {byTime, byTime, ""}, {byMPS, byTime, "shares it by MPS, this claim wants TimeSlicing"},
		{byLong, byTime, "time slice Long, this claim wants Default"}, {byLimits, byMPS, "multiUser false, this claim wants unset"},
	} {
		a, b := device(c.first), device(c.second)
		if got := b.Disagrees(a); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s, then %s: %q", c.first, c.second, got)
		}
		if a.Overlaps(b) || !a.Shares(b) {
			t.Error("two shares of a GPU are in each other's way")
		}
	}
	whole := device(byMPS)
	whole.Share = Share{}
	if !whole.Overlaps(device(byMPS)) || !device(byMPS).Overlaps(whole) {
		t.Error("a share and the whole are not in each other's way")
	}
}

func TestUse_Excess_NamesTheOverdrawnCapacity(t *testing.T) {
	s := Share{MemoryBytes: 40 << 30, DeviceMemoryBytes: 80 << 30, Compute: 40, MaxShares: 2}
	var u Use
	u.Add(s)
	u.Add(s)
	if excess := u.Excess(s); excess != "" {
		t.Error(excess)
	}
	for text, more := range map[string]Share{"memory": {MemoryBytes: 1 << 20}, "SMs": {Compute: 21}, "room for 2": {}} {
		v := u
		v.Add(more)
		if excess := v.Excess(s); !strings.Contains(excess, text) {
			t.Errorf("%+v: %q, want %q in it", more, excess, text)
		}
	}
}

// TestRefreshed_OlderDriver_ContainersGetItsSharedMemory: the other way round, containers keep what they have mounted.
func TestRefreshed_OlderDriver_ContainersGetItsSharedMemory(t *testing.T) {
	of := func(own bool) Plan { return Plan{Devices: []Device{{Sharing: Sharing{OwnSharedMemory: own}}}} }
	for _, c := range []struct{ before, now, want bool }{{true, false, false}, {false, true, false}, {true, true, true}} {
		if got := of(c.before).Refreshed(of(c.now)).Devices[0].Sharing.OwnSharedMemory; got != c.want {
			t.Errorf("%t, and now %t: %t", c.before, c.now, got)
		}
	}
}

func TestEqualShare_SharesOfAClaim_HaveIDsIfEqual(t *testing.T) {
	share := func(id, name string, limit uint64) Device {
		return Device{Name: name, ShareID: id, Share: Share{MemoryBytes: 1}, Sharing: Sharing{ContainerLimit: limit}}
	}
	p := Plan{Devices: []Device{share("a", "gpu-0", 4), share("b", "gpu-0", 4), share("c", "gpu-0", 2), share("d", "gpu-1", 4)}}
	for i, want := range []string{"a", "b", "", ""} {
		if got := p.EqualShare(i); got != want {
			t.Errorf("device %d: %q, want %q", i, got, want)
		}
	}
}
