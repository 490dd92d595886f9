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

// Verdict is what is found of a class that exists.
type Verdict struct {
	State string
	// Why is for a person.
	Why string
}

// Ours says whether a class selects devices of this driver and of no other.
func (w *World) Ours(class string) bool {
	c := w.ClassNamed(class)
	if c == nil {
		return false
	}
	driver, _ := w.selected(c.Spec.Selectors, "", "")
	return driver == w.Driver
}

// Concerns says whether a class is about this driver's devices, be it without saying so.
func (w *World) Concerns(class *resourceapi.DeviceClass) bool {
	return w.concerns(class.Spec.Selectors)
}

// Judge finds whether an existing class would be denied now, or matches nothing.
func (w *World) Judge(ctx context.Context, class *resourceapi.DeviceClass) Verdict {
	ctx, cancel := context.WithTimeout(ctx, max(w.Patience, judging))
	defer cancel()
	if errs := w.failing(ctx, class.Spec.Selectors); len(errs) > 0 {
		return Verdict{ClassInvalid, errs[0].Error()}
	}
	for _, c := range class.Spec.Config {
		if c.Opaque == nil || c.Opaque.Driver != w.Driver {
			continue
		}
		if _, err := v1beta1.Decode(c.Opaque.Parameters.Raw); err != nil {
			return Verdict{ClassInvalid, fmt.Sprintf("its parameters are refused when a pod is started: %v", err)}
		}
	}
	if !w.matches(ctx, class.Spec.Selectors) {
		return Verdict{ClassUnmatched, "no device of the cluster as it is now satisfies its selectors"}
	}
	return Verdict{State: ClassOK}
}
