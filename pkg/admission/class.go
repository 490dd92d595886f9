// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/fleet"
	"gpu-dra-driver/pkg/selector"
)

type result struct {
	// Errors are why the object is denied.
	Errors field.ErrorList
	// Warnings are for whoever writes the object; it is taken as it is.
	Warnings []string
}

func (r *result) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	// The API server cuts a warning at 256 bytes where there are many.
	const limit = 250
	if len(text) > limit {
		text = text[:limit] + "…"
	}
	r.Warnings = append(r.Warnings, text)
}

func (v *ClusterView) reviewClass(ctx context.Context, class *resourceapi.DeviceClass) result {
	var r result
	spec := field.NewPath("spec")
	driver := v.driverOf(class)
	for i, c := range class.Spec.Config {
		if c.Opaque == nil || c.Opaque.Driver != v.driver {
			continue
		}
		path := spec.Child("config").Index(i).Child("opaque")
		if _, err := v1beta1.Decode(c.Opaque.Parameters.Raw); err != nil {
			r.Errors = append(r.Errors, invalid(path.Child("parameters"), err))
		} else if driver != "" && driver != v.driver {
			r.Errors = append(r.Errors, field.Forbidden(path.Child("driver"),
				fmt.Sprintf("%s: the class selects devices of the driver %s, which does not read these parameters; leave them out", v.driver, driver)))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, max(v.timeout, evaluationTimeout))
	defer cancel()
	r.Errors = append(r.Errors, v.failing(ctx, class.Spec.Selectors)...)
	for _, e := range expressions(class.Spec.Selectors) {
		v.checkAttributes(&r, "the class", e, true)
	}
	if len(r.Errors)+len(r.Warnings) == 0 && driver == v.driver && !v.matches(ctx, expressions(class.Spec.Selectors)) {
		r.warn("DeviceClass %s matches no device of the cluster as it is now", class.Name)
	}
	return r
}

// evaluationTimeout bounds how long selectors are tried: an expression can be expensive, and a cluster can have many shapes.
const evaluationTimeout = 100 * time.Millisecond

// concerns says whether selectors are about this driver's devices: they name the driver, or read what its devices have.
func (v *ClusterView) concerns(expressions []string) bool {
	driver, _ := v.selected(expressions)
	return driver == v.driver || driver == "" && v.reads(expressions, func(selector.Name) bool { return true })
}

// reads says whether selectors name such an attribute or capacity of the driver's domain.
func (v *ClusterView) reads(expressions []string, such func(selector.Name) bool) bool {
	return slices.ContainsFunc(expressions, func(e string) bool {
		return slices.ContainsFunc(v.cache.read(e).Names, func(n selector.Name) bool { return n.Domain == v.driver && such(n) })
	})
}

// identified says whether selectors ask for certain boards. Which boards there are the shapes do not say.
func (v *ClusterView) identified(expressions []string) bool {
	return v.reads(expressions, func(n selector.Name) bool { return !n.Capacity && fleet.Identity(n.ID) })
}

// failing tries the selectors, one after the other as the scheduler does, and says which fails on what. Of selectors that
// are not about this driver's devices it says nothing, and nothing once the time is over.
func (v *ClusterView) failing(ctx context.Context, selectors []resourceapi.DeviceSelector) (errs field.ErrorList) {
	if !v.concerns(expressions(selectors)) {
		return nil
	}
	for _, s := range v.probes {
		for i, one := range selectors {
			if one.CEL == nil {
				continue
			}
			matches, err := v.try(ctx, one.CEL.Expression, s.candidate)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil && s.invented && !strings.Contains(err.Error(), "no such key") {
				break
			}
			if err != nil {
				path := field.NewPath("spec", "selectors").Index(i).Child("cel", "expression")
				return append(errs, field.Forbidden(path, fmt.Sprintf("it fails on a device of %s (%v), and such an error ends every allocation that meets one; "+
					"begin with device.driver == %q &&, and ask has(…) && before an attribute that not every device has", s.description, err, v.driver)))
			}
			if !matches {
				break
			}
		}
	}
	return nil
}

// matches says whether some device of the cluster satisfies all selectors; true where that cannot be told.
func (v *ClusterView) matches(ctx context.Context, expressions []string) bool {
	if len(v.pools) == 0 || v.identified(expressions) {
		return true
	}
	for _, p := range v.pools {
		for c := range v.candidates(p) {
			if ok, err := v.satisfies(ctx, expressions, c); ok && err == nil || ctx.Err() != nil {
				return true
			}
		}
	}
	return false
}

// satisfies tries the selectors one after the other, as the scheduler does.
func (v *ClusterView) satisfies(ctx context.Context, expressions []string, c candidate) (bool, error) {
	for _, e := range expressions {
		ok, err := v.try(ctx, e, c)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

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
