// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/node/sharing"
	"gpu-dra-driver/pkg/partition/layout/layouttest"
)

const (
	driver = "gpu.nvidia.com"
	node   = "n1"
	// h100Memory is the memory of an H100 with 80 GB, in bytes.
	h100Memory = 81559 << 20
)

// order rearranges the published slices.
type order struct {
	name    string
	arrange func([]resourceslices.Slice) []resourceslices.Slice
}

var orders = []order{
	{"ours", func(s []resourceslices.Slice) []resourceslices.Slice { return s }},
	{"mirrored", mirrored},
	{"naive", func(s []resourceslices.Slice) []resourceslices.Slice {
		return sorted(s, func(a, b gpu.Device) int { return cmp.Compare(a.Start, b.Start) })
	}},
	{"random", func(s []resourceslices.Slice) []resourceslices.Slice {
		random := rand.New(rand.NewPCG(7, 7))
		for i := range s {
			random.Shuffle(len(s[i].Devices), func(a, b int) {
				s[i].Devices[a], s[i].Devices[b] = s[i].Devices[b], s[i].Devices[a]
			})
		}
		return s
	}},
}

// mirrored puts the whole GPUs into slices of their own, after the partitions and from the other end.
func mirrored(s []resourceslices.Slice) []resourceslices.Slice {
	var wholes []resourceslices.Slice
	for i := range s {
		var rest []resourceapi.Device
		for _, d := range s[i].Devices {
			if parsed(d).Kind == gpu.KindGPU {
				wholes = append(wholes, resourceslices.Slice{Devices: []resourceapi.Device{d}})
				continue
			}
			rest = append(rest, d)
		}
		s[i].Devices = rest
	}
	slices.Reverse(wholes)
	return append(s, wholes...)
}

// sorted reorders the partitions of each slice.
func sorted(s []resourceslices.Slice, compare func(a, b gpu.Device) int) []resourceslices.Slice {
	for i := range s {
		slices.SortStableFunc(s[i].Devices, func(a, b resourceapi.Device) int { return compare(parsed(a), parsed(b)) })
	}
	return s
}

func parsed(d resourceapi.Device) gpu.Device {
	p, err := gpu.ParseName(d.Name)
	if err != nil {
		panic(err) // The driver's own names parse.
	}
	return p
}

// allocator is the scheduler's allocator, over a node's slices in some order.
type allocator struct {
	slices    []*resourceapi.ResourceSlice
	allocated sets.Set[structured.DeviceID]
	// shares are the allocations of shareable devices. Equal shares of one device can replace each other.
	shares map[gpu.Device][]resourceapi.DeviceRequestAllocationResult
	cache  *cel.Cache
}

func newAllocator(gpus int, o order) *allocator { return newLinked(gpus, 0, o) }

// newLinked makes an allocator over GPUs with the given number of links to switches.
func newLinked(gpus, links int, o order) *allocator { return newSharing(gpus, links, o, nil) }

// newSharing makes an allocator over GPUs that are shared as the source says.
func newSharing(gpus, links int, o order, shares sharing.Source) *allocator {
	var s gpu.Snapshot
	s.Driver.Version = "580.126.09"
	for i := range gpus {
		s.GPUs = append(s.GPUs, gpu.GPU{
			PCIAddress: address(i), UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: i,
			ProductName: "NVIDIA H100 80GB HBM3", Architecture: "Hopper", MemoryBytes: h100Memory, MIG: layouttest.H100(), MPSCapable: true,
		})
		for l := range links {
			s.GPUs[i].Links = append(s.GPUs[i].Links, gpu.Link{Index: l, Version: 4, Peer: gpu.PeerSwitch})
		}
	}
	pool, _ := resourceslices.Build(s, nil, resourceslices.Options{Node: node, Taints: true, SharedDevices: true, Counters: true, Sharing: shares})
	a := &allocator{allocated: sets.New[structured.DeviceID](), shares: map[gpu.Device][]resourceapi.DeviceRequestAllocationResult{}, cache: cel.NewCache(20, cel.Features{EnableConsumableCapacity: true})}
	name := node
	arranged := o.arrange(pool.Slices)
	for i, slice := range arranged {
		a.slices = append(a.slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%03d", i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &name, Devices: slice.Devices, SharedCounters: slice.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: pool.Name, Generation: 1, ResourceSliceCount: int64(len(arranged))},
			},
		})
	}
	return a
}

// List implements the lister of classes: one for each profile, and one for whole GPUs.
func (a *allocator) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

// Get returns a class by its name: a profile's, "nvlink-4" for groups, or empty for whole GPUs.
func (a *allocator) Get(name string) (*resourceapi.DeviceClass, error) {
	expression := `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`
	if size := groupSize(name); size > 0 {
		expression = fmt.Sprintf(`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "nvlink-group" && device.attributes["gpu.nvidia.com"].gpuCount == %d`, size)
	} else if name != "gpu" {
		expression = fmt.Sprintf(`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig" && device.attributes["gpu.nvidia.com"].profile == %q`, name)
	}
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}},
	}, nil
}

// place allocates a device for a request, or reports that none is free.
func (a *allocator) place(profile string) (gpu.Device, bool, error) {
	class := cmp.Or(profile, "gpu")
	var capacity *resourceapi.CapacityRequirements
	if size := shareSize(profile); size > 0 {
		class = "gpu"
		// The scheduler rounds up to the step, so that a share and the rest of the GPU would not fit beside each other.
		capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *resource.NewQuantity(int64(size)*h100Memory/wholeGPU/sharing.Step*sharing.Step, resource.BinarySI),
		}}
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1, Capacity: capacity},
		}}}},
	}
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}
	state := structured.AllocatedState{
		AllocatedDevices: a.allocated, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	for _, device := range a.shares {
		for _, r := range device {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	s, err := structured.NewAllocator(context.Background(), features, state, a, a.slices, a.cache)
	if err != nil {
		return gpu.Device{}, false, err
	}
	results, err := s.Allocate(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, []*resourceapi.ResourceClaim{claim})
	if err != nil && !errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return gpu.Device{}, false, err
	}
	if len(results) == 0 {
		return gpu.Device{}, false, nil
	}
	d := results[0].Devices.Results[0]
	named, err := gpu.ParseName(d.Device)
	if d.ShareID == nil {
		a.allocated.Insert(structured.MakeDeviceID(d.Driver, d.Pool, d.Device))
		return named, true, err
	}
	named.Profile = profile
	a.shares[named] = append(a.shares[named], d)
	return named, true, err
}

func (a *allocator) release(d gpu.Device) {
	if held := a.shares[d]; len(held) > 0 {
		a.shares[d] = held[1:]
		return
	}
	a.allocated.Delete(structured.MakeDeviceID(driver, resourceslices.PoolName(node), d.Name()))
}
