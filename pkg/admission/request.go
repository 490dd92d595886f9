// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
)

// request is one request of a claim, or one alternative of it, with what its class and selectors say.
type request struct {
	// name is as an allocation has it: request, or request/alternative. parent is the request of an alternative.
	name, parent string
	class        string
	classFound   *resourceapi.DeviceClass
	selectors    []resourceapi.DeviceSelector
	capacity     map[resourceapi.QualifiedName]bool
	// count is how many devices it takes, 0 where that is not said.
	count int64
	admin bool
	// driver and kind are of the devices that it selects, empty where they are not said.
	driver string
	kind   gpu.Kind
}

// alternative says that the request may get nothing, another of its parent being chosen.
func (r request) alternative() bool { return r.parent != "" }

// foreign says that devices of other drivers are selected, for sure.
func (v *ClusterView) foreign(r request) bool { return r.driver != "" && r.driver != v.driver }

// requests are a claim's.
func (v *ClusterView) requests(devices resourceapi.DeviceClaim) []request {
	var out []request
	for _, r := range devices.Requests {
		if e := r.Exactly; e != nil {
			out = append(out, v.request(request{
				name: r.Name, class: e.DeviceClassName, selectors: e.Selectors, capacity: capacities(e.Capacity),
				count: count(e.AllocationMode, e.Count), admin: e.AdminAccess != nil && *e.AdminAccess,
			}))
		}
		for _, s := range r.FirstAvailable {
			out = append(out, v.request(request{
				name: r.Name + "/" + s.Name, parent: r.Name, class: s.DeviceClassName, selectors: s.Selectors,
				capacity: capacities(s.Capacity), count: count(s.AllocationMode, s.Count),
			}))
		}
	}
	return out
}

func count(mode resourceapi.DeviceAllocationMode, n int64) int64 {
	switch {
	case mode == resourceapi.DeviceAllocationModeAll:
		return 0
	case n == 0:
		return 1 // The API's default, which older versions of an object may lack.
	}
	return n
}

func capacities(c *resourceapi.CapacityRequirements) map[resourceapi.QualifiedName]bool {
	out := map[resourceapi.QualifiedName]bool{}
	if c != nil {
		for name := range c.Requests {
			out[name] = true
		}
	}
	return out
}

// request fills in what class and selectors say.
func (v *ClusterView) request(r request) request {
	if r.class != "" {
		r.classFound = v.class(r.class)
	}
	if r.classFound != nil {
		r.driver, r.kind = v.selected(r.classFound.Spec.Selectors, r.driver, r.kind)
	}
	r.driver, r.kind = v.selected(r.selectors, r.driver, r.kind)
	return r
}

// selected is the driver and the kind of device that selectors leave.
func (v *ClusterView) selected(selectors []resourceapi.DeviceSelector, driver string, kind gpu.Kind) (string, gpu.Kind) {
	for _, s := range selectors {
		if s.CEL == nil {
			continue
		}
		r, err := v.cache.read(s.CEL.Expression)
		if err != nil {
			continue // The API server compiles expressions; what this reader does not follow says nothing.
		}
		if r.Driver != "" {
			driver = r.Driver
		}
		if t := r.Types[v.driver]; t != "" {
			kind = gpu.Kind(t)
		}
	}
	return driver, kind
}
