// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package whytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/why"
)

// Classes of a Fleet.
const (
	GPUs   = "gpu.nvidia.com"
	AnyMIG = "mig.nvidia.com"
	Small  = "mig-1g.10gb.nvidia.com"
	Medium = "mig-3g.40gb.nvidia.com"

	ofType  = `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "%s"`
	profile = ` && device.attributes["gpu.nvidia.com"].profile == "%s"`
)

// Namespace has all claims and pods.
const Namespace = "team-a"

// Fleet is a cluster in memory. Its Slices are as nodes write them.
type Fleet struct {
	why.Cluster
	Slices []*resourceapi.ResourceSlice
}

// New returns a Fleet with classes only.
func New() *Fleet {
	f := &Fleet{Cluster: why.Cluster{Nodes: []*corev1.Node{}}}
	for _, class := range [][2]string{
		{GPUs, fmt.Sprintf(ofType, "gpu")}, {Small, fmt.Sprintf(ofType+profile, "mig", "1g.10gb")},
		{Medium, fmt.Sprintf(ofType+profile, "mig", "3g.40gb")}, {AnyMIG, fmt.Sprintf(ofType, "mig")},
	} {
		f.Classes = append(f.Classes, &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: class[0]},
			Spec:       resourceapi.DeviceClassSpec{Selectors: Selectors(class[1])},
		})
	}
	return f
}

// Selectors returns a selector for each expression.
func Selectors(expressions ...string) (out []resourceapi.DeviceSelector) {
	for _, e := range expressions {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

var published sync.Map // profile and GPUs → slices

// Add adds a node with so many GPUs of a profile of the simulator.
func (f *Fleet) Add(name, profile string, count int) (*corev1.Node, error) {
	key := fmt.Sprint(profile, count)
	known, ok := published.Load(key)
	if !ok {
		all, err := slicetest.Node(profile, "template", count)
		if err != nil {
			return nil, err
		}
		published.Store(key, all)
		known = all
	}
	for _, s := range known.([]*resourceapi.ResourceSlice) {
		s = s.DeepCopy()
		s.Name = strings.Replace(s.Name, "template", name, 1)
		s.Spec.NodeName = &name
		s.Spec.Pool.Name = strings.Replace(s.Spec.Pool.Name, "template", name, 1)
		f.Slices = append(f.Slices, s)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{"kubernetes.io/hostname": name}}}
	f.Nodes = append(f.Nodes, n)
	return n, nil
}

// Claim returns a claim with one request, named `gpu`.
func Claim(
	name, class string, count int64, change ...func(*resourceapi.ExactDeviceRequest),
) *resourceapi.ResourceClaim {
	q := &resourceapi.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, f := range change {
		f(q)
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID(name)},
		Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: q}}},
		},
	}
}

// Pod returns a pod that uses claims.
func Pod(name string, claims ...*resourceapi.ResourceClaim) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, UID: types.UID(name)}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims,
			corev1.PodResourceClaim{Name: c.Name, ResourceClaimName: &c.Name})
	}
	return p
}

// lister implements structured.DeviceClassLister.
type lister []*resourceapi.DeviceClass

func (l lister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }

func (l lister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, c := range l {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, errors.New("no such class")
}

var compiled = cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})

// Schedule runs the allocator as the scheduler does: all slices with the rules' taints, all claims, one node. It
// returns no allocations if they do not fit, and an error if the allocator gives up or needs more than a second.
func Schedule(
	c *Fleet, node *corev1.Node, claims []*resourceapi.ResourceClaim,
) ([]resourceapi.AllocationResult, error) {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, one := range c.Claims {
		if one.Status.Allocation == nil {
			continue
		}
		for _, r := range one.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
			if r.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
	var tainted []*resourceapi.ResourceSlice
	for _, s := range c.Slices {
		s = s.DeepCopy()
		for _, r := range c.Rules {
			for i := range s.Spec.Devices {
				if *r.Spec.DeviceSelector.Pool == s.Spec.Pool.Name &&
					ptr.Deref(r.Spec.DeviceSelector.Device, s.Spec.Devices[i].Name) == s.Spec.Devices[i].Name {
					s.Spec.Devices[i].Taints = append(s.Spec.Devices[i].Taints, r.Spec.Taint)
				}
			}
		}
		tainted = append(tainted, s)
	}
	features := structured.Features{
		AdminAccess:          true,
		ConsumableCapacity:   true,
		DeviceTaints:         true,
		PartitionableDevices: true,
		PrioritizedList:      true,
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	a, err := structured.NewAllocator(ctx, features, state, lister(c.Classes), tainted, compiled)
	if err != nil {
		return nil, err
	}
	out, err := a.Allocate(ctx, node, claims)
	if errors.Is(err, structured.ErrFailedAllocationOnNode) {
		return nil, nil
	}
	return out, err
}

// Start allocates a claim on a node, for a pod of its name, and reports whether there was room.
func (f *Fleet) Start(c *resourceapi.ResourceClaim, node string) bool {
	at := slices.IndexFunc(f.Nodes, func(n *corev1.Node) bool { return n.Name == node })
	results, err := Schedule(f, f.Nodes[at], []*resourceapi.ResourceClaim{c})
	if err != nil || len(results) == 0 {
		return false
	}
	c.Status.Allocation = &results[0]
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: c.Name, UID: c.UID}}
	c.CreationTimestamp = metav1.NewTime(time.Now().Add(-3 * time.Hour))
	f.Claims = append(f.Claims, c)
	return true
}

// Pack packs slices, as the command does.
func Pack(all []*resourceapi.ResourceSlice) (out []*pool.Slice, err error) {
	var shapes pool.Shapes
	for _, s := range all {
		raw, err := s.Marshal()
		if err != nil {
			return nil, err
		}
		p, err := shapes.Pack(raw)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Unshared gives each slice a Shape of its own.
func Unshared(all []*resourceapi.ResourceSlice) (out []*pool.Slice) {
	for _, s := range all {
		out = append(out, pool.Unshared(s))
	}
	return out
}
