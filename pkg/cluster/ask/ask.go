// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package ask asks the scheduler's own allocator, and its selectors, about nodes and claims. Does a device satisfy a
// selector? Can a node allocate claims? What keeps a request from a device? Admission and people's questions use the
// same answers, so they never disagree.
//
// Trap: the allocator takes long if it must try many combinations, so each question needs a context with a limit:
// WithProcessorTime.
package ask

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// Features returns the features of the allocator that the scheduler of a cluster has, by the version of its API server.
// A feature with fields of its own is on, because a server without it drops the fields. test/allocators compares the
// features with those of each version's scheduler.
func Features(server schedulerfault.Version) structured.Features {
	return structured.Features{
		AdminAccess:             true,
		ConsumableCapacity:      true,
		DeviceBindingAndStatus:  true,
		DeviceTaints:            true,
		PartitionableDevices:    true,
		PrioritizedList:         true,
		FractionalCapacityRange: server == schedulerfault.Version{} || server.Minor >= 37,
	}
}

// Asker asks with the classes of a cluster. It is a session: its copies share the results of the Evaluator. It is safe
// for concurrent use.
type Asker struct {
	*Evaluator
	Classes resourcelisters.DeviceClassLister
	// Server is the version of the API server. The zero Version means that it is unknown; then the newest one counts.
	Server schedulerfault.Version
}

// Of returns an Asker with classes, of which nil ones do not count, and the API server's version. A version that is
// empty or unreadable is unknown.
func Of(classes []*resourceapi.DeviceClass, server string) Asker {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, class := range classes {
		if class != nil {
			_ = indexer.Add(class) // The key function fails only for objects without metadata.
		}
	}
	a := Following(indexer)
	a.Server, _ = schedulerfault.Parse(server)
	return a
}

// Following returns an Asker with the classes of a cache, which can change.
func Following(classes cache.Indexer) Asker {
	return Asker{Evaluator: NewEvaluator(), Classes: resourcelisters.NewDeviceClassLister(classes)}
}

// Class returns a DeviceClass, or nil.
func (a Asker) Class(name string) *resourceapi.DeviceClass {
	class, _ := a.Classes.Get(name)
	return class
}

// AllClasses returns the classes of the cluster.
func (a Asker) AllClasses() []*resourceapi.DeviceClass {
	all, _ := a.Classes.List(labels.Everything()) // A cache has no errors.
	return all
}

// lister implements structured.DeviceClassLister.
type lister struct {
	resourcelisters.DeviceClassLister
}

func (l lister) List() ([]*resourceapi.DeviceClass, error) {
	return l.DeviceClassLister.List(labels.Everything())
}

// Request is a request of a claim, or one alternative of it, with its class.
type Request struct {
	selector.Request
	// Class is nil if it does not exist.
	Class *resourceapi.DeviceClass
}

// Requests returns the exact requests and the alternatives of a claim.
func (a Asker) Requests(devices resourceapi.DeviceClaim) (out []Request) {
	for q := range selector.Requests(devices.Requests) {
		out = append(out, Request{q, a.Class(q.DeviceClassName)})
	}
	return out
}

// OfAll returns the requests of claims.
func (a Asker) OfAll(claims []*resourceapi.ResourceClaim) (out []Request) {
	for _, c := range claims {
		out = append(out, a.Requests(c.Spec.Devices)...)
	}
	return out
}

// Expressions returns the expressions of the class, then those of the request, as the scheduler does.
func (r Request) Expressions() []string {
	own := selector.Expressions(r.Selectors)
	if r.Class == nil {
		return own
	}
	return slices.Concat(selector.Expressions(r.Class.Spec.Selectors), own)
}

// Alternative reports whether the request is one of several, of which only one gets devices.
func (r Request) Alternative() bool { return r.Parent != "" }

// Admin reports whether the request is for administrators, beside the holders of the devices.
func (r Request) Admin() bool { return ptr.Deref(r.AdminAccess, false) }

// Devices returns the number of devices, or 0 if it is open.
func (r Request) Devices() int64 {
	if r.AllocationMode == resourceapi.DeviceAllocationModeAll {
		return 0
	}
	return max(r.Count, 1) // The API's default; older objects lack it.
}

// Defaulted sets the API server's defaults, which older objects and manifests lack.
func Defaulted(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r = *r.DeepCopy()
	if e := r.Exactly; e != nil && e.AllocationMode == "" {
		e.AllocationMode, e.Count = resourceapi.DeviceAllocationModeExactCount, max(e.Count, 1)
	}
	for i := range r.FirstAvailable {
		if s := &r.FirstAvailable[i]; s.AllocationMode == "" {
			s.AllocationMode, s.Count = resourceapi.DeviceAllocationModeExactCount, max(s.Count, 1)
		}
	}
	return r
}
