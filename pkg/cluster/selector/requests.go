// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package selector

import (
	"iter"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// Request is an exact request of a claim, or an alternative of a request in the same form.
type Request struct {
	// Name is the name in an allocation: request, or request/alternative. Parent is the request of an alternative.
	Name, Parent string
	resourceapi.ExactDeviceRequest
}

// Requests iterates over the exact requests and the alternatives. Requests of a later kind are left out.
func Requests(all []resourceapi.DeviceRequest) iter.Seq[Request] {
	return func(yield func(Request) bool) {
		for _, r := range all {
			if r.Exactly != nil && !yield(Request{Name: r.Name, ExactDeviceRequest: *r.Exactly}) {
				return
			}
			for _, s := range r.FirstAvailable {
				if !yield(Request{r.Name + "/" + s.Name, r.Name, resourceapi.ExactDeviceRequest{
					DeviceClassName: s.DeviceClassName,
					Selectors:       s.Selectors,
					AllocationMode:  s.AllocationMode,
					Count:           s.Count,
					Tolerations:     s.Tolerations,
					Capacity:        s.Capacity,
				}}) {
					return
				}
			}
		}
	}
}

// Expressions returns the CEL expressions of selectors. A selector of a later kind has none, and counts as matching.
func Expressions(selectors []resourceapi.DeviceSelector) (out []string) {
	for _, s := range selectors {
		if s.CEL != nil {
			out = append(out, s.CEL.Expression)
		}
	}
	return out
}

// Concern reports whether selectors choose devices of a driver: by its name, or by one of its attributes.
func Concern(selectors []resourceapi.DeviceSelector, driver string) bool {
	for _, e := range Expressions(selectors) {
		r, err := Read(e)
		if err == nil && (r.Driver == driver || slices.ContainsFunc(r.Names, func(n Name) bool {
			return n.Domain == driver
		})) {
			return true
		}
	}
	return false
}
