// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/api/deviceclass/v1beta1"
)

// States of a DeviceClass.
const (
	ClassOK        = "ok"
	ClassUnmatched = "unmatched"
	ClassInvalid   = "invalid"
)

// ClassStatus is the state of an existing class, and the reason for a person.
type ClassStatus struct{ State, Reason string }

// Ours says whether a class selects devices of this driver and of no other.
func (v *ClusterView) Ours(class string) bool {
	c := v.class(class)
	return c != nil && v.driverOf(c) == v.driver
}

// driverOf is the only driver whose devices a class selects, empty where it may be any.
func (v *ClusterView) driverOf(class *resourceapi.DeviceClass) string {
	driver, _ := v.selected(expressions(class.Spec.Selectors))
	return driver
}

// Concerns says whether a class is about this driver's devices, be it without saying so.
func (v *ClusterView) Concerns(class *resourceapi.DeviceClass) bool {
	return v.concerns(expressions(class.Spec.Selectors))
}

// Evaluate finds whether an existing class would be denied now, or matches nothing.
func (v *ClusterView) Evaluate(ctx context.Context, class *resourceapi.DeviceClass) ClassStatus {
	ctx, cancel := context.WithTimeout(ctx, max(v.timeout, evaluationTimeout))
	defer cancel()
	if errs := v.failing(ctx, class.Spec.Selectors); len(errs) > 0 {
		return ClassStatus{ClassInvalid, errs[0].Error()}
	}
	for _, c := range class.Spec.Config {
		if c.Opaque == nil || c.Opaque.Driver != v.driver {
			continue
		}
		if _, err := v1beta1.Decode(c.Opaque.Parameters.Raw); err != nil {
			return ClassStatus{ClassInvalid, fmt.Sprintf("its parameters are refused when a pod is started: %v", err)}
		}
	}
	if !v.matches(ctx, expressions(class.Spec.Selectors)) {
		return ClassStatus{ClassUnmatched, "no device of the cluster as it is now satisfies its selectors"}
	}
	return ClassStatus{State: ClassOK}
}
