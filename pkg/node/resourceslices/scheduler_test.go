// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

const driver = "gpu.nvidia.com"

// scheduler is the scheduler's own allocator over built slices.
type scheduler struct {
	t         testing.TB
	slices    []*resourceapi.ResourceSlice
	allocated sets.Set[structured.DeviceID]
	// shares are the parts of devices that were given, in the order of allocation; used is their sum.
	shares []share
	used   structured.ConsumedCapacityCollection
	cache  *cel.Cache
	count  int
	took   time.Duration // the last Allocate, the allocator being there for all nodes
}

func newScheduler(t testing.TB, s gpu.Snapshot, o resourceslices.Options) *scheduler {
	o.Node, o.Taints, o.SharedDevices, o.Counters = "n1", true, true, true
	pool, _ := resourceslices.Build(s, nil, o)
	out := &scheduler{t: t, allocated: sets.New[structured.DeviceID](), used: structured.NewConsumedCapacityCollection(), cache: cel.NewCache(20, cel.Features{EnableConsumableCapacity: true})}
	node, pools := o.Node, map[string]int64{}
	for _, slice := range pool.Slices {
		pools[wire.PoolOf(node, slice.Devices)]++
	}
	for i, slice := range pool.Slices {
		name := wire.PoolOf(node, slice.Devices)
		out.slices = append(out.slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%03d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &node, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: pools[name]},
			},
		})
	}
	return out
}

func (s *scheduler) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

// Get knows the driver's classes, and one that selects on the driver alone, as cloud documentation has it.
func (s *scheduler) Get(name string) (*resourceapi.DeviceClass, error) {
	expression, ok := map[string]string{
		"gpu.nvidia.com":         `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
		"monitor.gpu.nvidia.com": `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "monitor"`,
		"nvlink.gpu.nvidia.com":  `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "nvlink-group"`,
		"mig.nvidia.com":         `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`,
		"mig-1g.10gb.nvidia.com": `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig" && device.attributes["gpu.nvidia.com"].profile == "1g.10gb"`,
		"any.example.com":        `device.driver == "gpu.nvidia.com"`,
	}[name]
	if !ok {
		return nil, errors.New("no such class")
	}
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}},
	}, nil
}

// claim asks for a number of devices of a class that satisfy the expressions.
func (s *scheduler) claim(class string, count int64, expressions ...string) *resourceapi.ResourceClaim {
	exact := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, e := range expressions {
		exact.Selectors = append(exact.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	s.count++
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("claim-%d", s.count), Namespace: "default"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "req", Exactly: exact}},
		}},
	}
}

// allocate gives a claim to the scheduler and remembers what it took; nil where nothing fits.
func (s *scheduler) allocate(claim *resourceapi.ResourceClaim) []string {
	s.t.Helper()
	var devices []string
	results, err := s.results(claim)
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		s.t.Fatal(err)
	}
	for _, d := range results {
		devices = append(devices, d.Device)
		if d.ShareID != nil {
			s.share(d)
			continue
		}
		if d.AdminAccess == nil || !*d.AdminAccess {
			s.allocated.Insert(structured.MakeDeviceID(d.Driver, d.Pool, d.Device))
		}
	}
	return devices
}

// results returns the scheduler's allocation for a claim, without keeping it.
func (s *scheduler) results(claim *resourceapi.ResourceClaim) (out []resourceapi.DeviceRequestAllocationResult, err error) {
	s.t.Helper()
	ctx := context.Background()
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}
	state := structured.AllocatedState{
		AllocatedDevices: s.allocated, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: s.used,
	}
	for _, one := range s.shares {
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(one.device, &one.id))
	}
	allocator, err := structured.NewAllocator(ctx, features, state, s, s.slices, s.cache)
	if err != nil {
		s.t.Fatal(err)
	}
	start := time.Now()
	results, err := allocator.Allocate(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, []*resourceapi.ResourceClaim{claim})
	s.took = time.Since(start)
	for _, r := range results {
		out = append(out, r.Devices.Results...)
	}
	return out, err
}

func (s *scheduler) want(claim *resourceapi.ResourceClaim, want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.allocate(claim)); diff != "" {
		s.t.Errorf("allocated (-want +got):\n%s", diff)
	}
}

// monitoring turns a claim into a monitoring one.
func monitoring(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	admin := true
	c.Spec.Devices.Requests[0].Exactly.AdminAccess = &admin
	c.Spec.Devices.Requests[0].Exactly.Tolerations = []resourceapi.DeviceToleration{{Key: wire.MonitorTaint, Operator: resourceapi.DeviceTolerationOpExists}}
	return c
}

func TestBuild_TwoClaims_AllocatesDifferentGPUs(t *testing.T) {
	s := newScheduler(t, snapshot(t, "hgx-h100", 8), resourceslices.Options{})
	first := s.allocate(s.claim("gpu.nvidia.com", 1))
	second := s.allocate(s.claim("gpu.nvidia.com", 1))
	if len(first) != 1 || len(second) != 1 || first[0] == second[0] {
		t.Errorf("two claims got %v and %v", first, second)
	}
}

func TestBuild_AllGPUsAllocated_AllocatesNoMore(t *testing.T) {
	s := newScheduler(t, snapshot(t, "hgx-h100", 8), resourceslices.Options{})
	s.want(s.claim("gpu.nvidia.com", 9))
	if got := s.allocate(s.claim("gpu.nvidia.com", 8)); len(got) != 8 {
		t.Errorf("8 GPUs: got %v", got)
	}
	s.want(s.claim("gpu.nvidia.com", 1))
}

func TestBuild_ClassOfDriverAlone_AllocatesGPUsOnly(t *testing.T) {
	s := newScheduler(t, snapshot(t, "hgx-h100", 8), resourceslices.Options{})
	for range 8 {
		got := s.allocate(s.claim("any.example.com", 1))
		if len(got) != 1 {
			t.Fatalf("got %v, want a GPU", got)
		}
		if d, err := gpu.ParseName(got[0]); err != nil || d.Kind != gpu.KindGPU {
			t.Fatalf("got %v, want a GPU", got)
		}
	}
	s.want(s.claim("any.example.com", 1)) // No claim gets a monitor by accident.
}

func TestBuild_CELSelectors_MatchAttributes(t *testing.T) {
	for expression, want := range map[string]bool{
		`device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("h100")`:                     true,
		`device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("a100")`:                     false,
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("79Gi")) >= 0`:                        true,
		`device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0`:                        false,
		`device.attributes["gpu.nvidia.com"].cudaComputeCapability.isGreaterThan(semver("8.9.0"))`:         true,
		`device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("580.126.8"))`:             true,
		`device.attributes["gpu.nvidia.com"].driverVersionRaw == "580.126.09"`:                             true,
		`device.attributes["gpu.nvidia.com"].architecture == "Hopper"`:                                     true,
		`device.attributes["gpu.nvidia.com"].index == 3`:                                                   true,
		`device.attributes["gpu.nvidia.com"].migCapable && device.attributes["gpu.nvidia.com"].mpsCapable`: true,
		`device.attributes["resource.kubernetes.io"].numaNode == 1`:                                        true,
		`device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci")`:                           true,
		`device.capacity["gpu.nvidia.com"].multiprocessors.compareTo(quantity("132")) == 0`:                true,
		`device.attributes["gpu.nvidia.com"].cudaDriverVersion.compareTo(semver("13.0.0")) >= 0`:           true,
		`device.attributes["gpu.nvidia.com"].type == "monitor"`:                                            false,
	} {
		s := newScheduler(t, snapshot(t, "hgx-h100", 8), resourceslices.Options{})
		if got := s.allocate(s.claim("gpu.nvidia.com", 1, expression)); (len(got) == 1) != want {
			t.Errorf("%s: got %v, want a GPU: %v", expression, got, want)
		}
	}
}

func TestBuild_NodeFull_AllocatesMonitors(t *testing.T) {
	s := newScheduler(t, snapshot(t, "hgx-h100", 8), resourceslices.Options{})
	s.allocate(s.claim("gpu.nvidia.com", 8))
	for range 2 { // and a second watcher
		c := monitoring(s.claim("monitor.gpu.nvidia.com", 8))
		got := s.allocate(c)
		if len(got) != 8 {
			t.Fatalf("a watcher got %v, want 8 monitors", got)
		}
		for _, name := range got {
			if d, err := gpu.ParseName(name); err != nil || d.Kind != gpu.KindMonitor {
				t.Errorf("a watcher got %s", name)
			}
		}
	}
	c := monitoring(s.claim("monitor.gpu.nvidia.com", 1))
	c.Spec.Devices.Requests[0].Exactly.Tolerations = nil
	s.want(c)
}

func TestBuild_HeldGPULost_IsNotAllocatedAgain(t *testing.T) {
	all := snapshot(t, "hgx-h100", 8)
	lost := all.GPUs[0]
	left := all
	left.GPUs = all.GPUs[1:]
	left.Problems = []gpu.Problem{{PCIAddress: lost.PCIAddress, Lost: true, Message: "lost"}}
	s := newScheduler(t, left, resourceslices.Options{Held: []resourceslices.Held{{Device: gpu.Device{Kind: gpu.KindGPU, PCIAddress: lost.PCIAddress}, GPU: lost}}})
	// Not even after its claim is gone and the record not yet.
	if got := s.allocate(s.claim("gpu.nvidia.com", 7)); len(got) != 7 {
		t.Errorf("got %v, want the other seven", got)
	}
	s.want(s.claim("gpu.nvidia.com", 1))
}
