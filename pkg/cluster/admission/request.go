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

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/gpu"
)

// request is a request of a claim, or one alternative of it, with the analysis of its class and selectors.
type request struct {
	ask.Request
	// driver and kind describe the selected devices; they are empty if that is open.
	driver string
	kind   gpu.Kind
}

func (r request) amounts() map[resourceapi.QualifiedName]resource.Quantity {
	if r.Capacity == nil {
		return nil
	}
	return r.Capacity.Requests
}

// others reports whether the request selects only devices of another driver.
func (v *ClusterView) others(r request) bool { return r.driver != "" && r.driver != v.driver }

func (v *ClusterView) requests(devices resourceapi.DeviceClaim) (out []request) {
	for _, r := range v.Requests(devices) {
		driver, kind := v.selected(r.Expressions())
		out = append(out, request{r, driver, kind})
	}
	return out
}

// selected returns the driver and the kind of device that expressions require, or empty strings.
func (v *ClusterView) selected(expressions []string) (driver string, kind gpu.Kind) {
	for _, e := range expressions {
		r := v.Read(e)
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
		for _, name := range slices.Sorted(maps.Keys(q.amounts())) {
			at, amount := path.Key(q.Name).Child("capacity", "requests").Key(string(name)), q.amounts()[name]
			if short, ok := strings.CutPrefix(string(name), v.driver+"/"); ok {
				errs = append(errs, field.Forbidden(at,
					fmt.Sprintf("no device has a capacity of this name, because the scheduler compares it as it is "+
						"published; write %s: %s", short, amount.String())))
				continue
			}
			least := int64(0)
			if name == "memory" {
				least = sharing.MinMemory
			}
			if amount.CmpInt64(least) < 0 {
				effect := ""
				if amount.Sign() >= 0 {
					effect = ", to which the scheduler raises it"
				}
				errs = append(errs, field.Forbidden(at,
					fmt.Sprintf("%s is less than the least share, %s%s", amount.String(),
						resource.NewQuantity(least, resource.BinarySI), effect)))
			}
		}
	}
	return errs
}
