// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/sharing"
)

// request is one request of a claim, or one alternative of it, with the analysis of its class and selectors.
type request struct {
	// name is the name in an allocation: request, or request/alternative. parent is the request of an alternative.
	name, parent string
	class        string
	classFound   *resourceapi.DeviceClass
	// expressions are the request's selectors, without those of the class.
	expressions []string
	capacity    map[resourceapi.QualifiedName]resource.Quantity
	// count is the number of devices, or 0 if it is open.
	count int64
	admin bool
	// driver and kind are those of the selected devices, or empty if they are open.
	driver string
	kind   gpu.Kind
}

// alternative reports whether the request is one of several, of which only one gets devices.
func (r request) alternative() bool { return r.parent != "" }

// foreign reports whether the request selects only devices of another driver.
func (v *ClusterView) foreign(r request) bool { return r.driver != "" && r.driver != v.driver }

func (v *ClusterView) requests(devices resourceapi.DeviceClaim) []request {
	var out []request
	for r := range selector.Requests(devices.Requests) {
		q := request{
			name: r.Name, parent: r.Parent, class: r.DeviceClassName, classFound: v.class(r.DeviceClassName),
			expressions: selector.Expressions(r.Selectors), admin: ptr.Deref(r.AdminAccess, false),
		}
		if r.Capacity != nil {
			q.capacity = r.Capacity.Requests
		}
		if r.AllocationMode != resourceapi.DeviceAllocationModeAll {
			q.count = max(r.Count, 1) // The API's default; older objects lack it.
		}
		q.driver, q.kind = v.selected(q.all())
		out = append(out, q)
	}
	return out
}

// all returns the expressions of the class, then those of the request, as the scheduler does.
func (r request) all() []string {
	if r.classFound == nil {
		return r.expressions
	}
	return slices.Concat(selector.Expressions(r.classFound.Spec.Selectors), r.expressions)
}

// selected returns the driver and the kind of device that expressions require, or empty strings.
func (v *ClusterView) selected(expressions []string) (driver string, kind gpu.Kind) {
	for _, e := range expressions {
		r := v.cache.Read(e)
		driver = cmp.Or(r.Driver, driver)
		kind = cmp.Or(gpu.Kind(r.Type(v.driver)), kind)
	}
	return driver, kind
}

// capacities denies amounts that the scheduler would round up, and names that match no device.
func (v *ClusterView) capacities(requests []request, path *field.Path) (errs field.ErrorList) {
	for _, q := range requests {
		if q.driver != v.driver {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(q.capacity)) {
			at, amount := path.Key(q.name).Child("capacity", "requests").Key(string(name)), q.capacity[name]
			if short, ok := strings.CutPrefix(string(name), v.driver+"/"); ok {
				errs = append(errs, field.Forbidden(at, fmt.Sprintf("no device has a capacity of this name, because the scheduler compares it as it is published; write %s: %s", short, amount.String())))
				continue
			}
			least := int64(0)
			if name == "memory" {
				least = sharing.MinMemory
			}
			if amount.CmpInt64(least) < 0 {
				errs = append(errs, field.Forbidden(at, fmt.Sprintf("%s is less than the least share, %s", amount.String(), resource.NewQuantity(least, resource.BinarySI))))
			}
		}
	}
	return errs
}
