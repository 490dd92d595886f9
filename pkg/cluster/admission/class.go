// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

type result struct {
	// Errors are the reasons for a denial.
	Errors field.ErrorList
	// Unsatisfiable is the reason for a denial by Options.DenyUnsatisfiable.
	Unsatisfiable field.ErrorList
	// Warnings are for the author of the object; they do not prevent it.
	Warnings []string
	// cut means that the review reached its time limit.
	cut bool
}

// maxWarnings is the number of warnings of an answer. More do not help the author, and any program can post a review.
const maxWarnings = 10

// enough reports whether the review has all the warnings that it can give.
func (r *result) enough() bool { return len(r.Warnings) >= maxWarnings }

func (r *result) warn(format string, args ...any) {
	if r.enough() {
		return
	}
	text := fmt.Sprintf(format, args...)
	// The API server cuts long lists of warnings to 256 bytes each.
	const maxWarning = 250
	if len(text) > maxWarning {
		text = text[:maxWarning] + "…"
	}
	r.Warnings = append(r.Warnings, text)
}

func (v *ClusterView) reviewClass(ctx context.Context, class *resourceapi.DeviceClass) result {
	var r result
	spec := field.NewPath("spec")
	if v.tooLarge(resourceapi.DeviceRequest{
		Exactly: &resourceapi.ExactDeviceRequest{Selectors: class.Spec.Selectors},
	}) ||
		len(class.Spec.Config) > resourceapi.DeviceConfigMaxSize {
		r.Errors = field.ErrorList{field.Forbidden(spec, tooLargeText)}
		return r
	}
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
				fmt.Sprintf("%s: the class selects devices of the driver %s, which does not read these parameters; "+
					"leave them out", v.driver, driver)))
		}
	}
	ctx, cancel := v.limited(ctx, evaluateFor)
	defer cancel()
	r.Errors = append(r.Errors, v.failing(ctx, class.Spec.Selectors)...)
	if text := v.failingHere(ctx, class.Spec.Selectors); text != "" && len(r.Errors) == 0 {
		r.warn("%s", text)
	}
	for _, e := range selector.Expressions(class.Spec.Selectors) {
		v.checkAttributes(&r, "the class", e, true)
	}
	v.checkResourceName(&r, class)
	if len(r.Errors)+len(r.Warnings) == 0 && driver == v.driver &&
		!v.matches(ctx, selector.Expressions(class.Spec.Selectors)) {
		r.warn("DeviceClass %s matches no device of the cluster as it is now", class.Name)
	}
	if len(r.Errors) == 0 && driver == v.driver {
		if types := v.types(ctx, selector.Expressions(class.Spec.Selectors)); len(types) > 1 {
			r.warn("DeviceClass %s matches devices of the types %s, and one request can get a mixture; add && "+
				"device.attributes[%q].type == %q",
				class.Name, strings.Join(types, ", "), v.driver, gpu.KindGPU)
		}
	}
	r.cut = ctx.Err() != nil
	return r
}

// checkResourceName warns of an extended resource that another class has already. The scheduler serves it from the
// newest class only, and forgets it when either class goes.
func (v *ClusterView) checkResourceName(r *result, class *resourceapi.DeviceClass) {
	if class.Spec.ExtendedResourceName == nil {
		return
	}
	for _, c := range v.AllClasses() {
		if c.Name != class.Name && ptr.Equal(c.Spec.ExtendedResourceName, class.Spec.ExtendedResourceName) &&
			(v.Concerns(c) || v.Concerns(class)) {
			r.warn("DeviceClass %s has the extendedResourceName %s too; the scheduler uses the newest class only, "+
				"for every pod that asks for it",
				c.Name, *class.Spec.ExtendedResourceName)
		}
	}
}

// evaluateFor is the processor time for the selectors of a class: expressions can be slow, and clusters can have many
// shapes.
const evaluateFor = 100 * time.Millisecond

// concerns reports whether selectors are about this driver's devices: they name the driver or read its attributes.
func (v *ClusterView) concerns(expressions []string) bool {
	driver, _ := v.selected(expressions)
	return driver == v.driver || driver == "" && v.reads(expressions, func(selector.Name) bool { return true })
}

// reads reports whether selectors read such an attribute or capacity of the driver's domain.
func (v *ClusterView) reads(expressions []string, such func(selector.Name) bool) bool {
	return slices.ContainsFunc(expressions, func(e string) bool {
		return slices.ContainsFunc(v.Read(e).Names, func(n selector.Name) bool {
			return n.Domain == v.driver && such(n)
		})
	})
}

// identified reports whether selectors ask for certain boards, whose identities are not in shapes.
func (v *ClusterView) identified(expressions []string) bool {
	return v.reads(expressions, func(n selector.Name) bool { return !n.Capacity && pool.Identity(n.ID) })
}

// failing evaluates the selectors in turn, as the scheduler does, and returns the first error with its device. It
// ignores selectors for other drivers, and returns nothing after the timeout. Only devices that the driver itself
// describes count: a node can publish any device, and must not deny classes with it.
func (v *ClusterView) failing(ctx context.Context, selectors []resourceapi.DeviceSelector) field.ErrorList {
	if !v.concerns(selector.Expressions(selectors)) {
		return nil
	}
	for _, p := range v.invented(selector.Expressions(selectors)) {
		if i, err := v.firstError(ctx, selectors, p.Candidate); err != nil &&
			strings.Contains(err.Error(), "no such key") {
			path := field.NewPath("spec", "selectors").Index(i).Child("cel", "expression")
			return field.ErrorList{field.Forbidden(path, fmt.Sprintf("it fails on a device of %s (%v), and such an "+
				"error ends every allocation that meets one; begin with device.driver == %q &&, and ask has(…) && "+
				"before an attribute that not every device has", p.description, err, v.driver))}
		}
	}
	return nil
}

// failingHere is like failing, for the devices of the cluster. It returns a text for people, or "".
func (v *ClusterView) failingHere(ctx context.Context, selectors []resourceapi.DeviceSelector) string {
	if !v.concerns(selector.Expressions(selectors)) {
		return ""
	}
	for _, p := range v.probes {
		if i, err := v.firstError(ctx, selectors, p.Candidate); err != nil {
			return fmt.Sprintf("spec.selectors[%d] fails on a device of %s (%v), and such an error ends every "+
				"allocation that meets it", i, p.description, err)
		}
	}
	return ""
}

// firstError evaluates the selectors in turn until one is false or fails. An invalid one is false: the API server
// refuses it.
func (v *ClusterView) firstError(
	ctx context.Context, selectors []resourceapi.DeviceSelector, c ask.Candidate,
) (int, error) {
	for i, one := range selectors {
		if one.CEL == nil {
			continue
		}
		matches, err := v.Matches(ctx, one.CEL.Expression, c)
		if errors.Is(err, ask.ErrInvalid) || ctx.Err() != nil || err == nil && !matches {
			return 0, nil
		}
		if err != nil {
			return i, err
		}
	}
	return 0, nil
}

// matches reports whether a device of the cluster satisfies all selectors. It returns true if that is unknown.
func (v *ClusterView) matches(ctx context.Context, expressions []string) bool {
	if len(v.pools) == 0 || v.identified(expressions) {
		return true
	}
	if driver, kind := v.selected(expressions); v.grows(driver, kind) {
		return !v.elsewhere(expressions)
	}
	for c := range candidates(v.pools...) {
		if ok, err := v.satisfies(ctx, expressions, c); ok && err == nil || ctx.Err() != nil {
			return true
		}
	}
	return false
}

// types returns the types of the devices for use that satisfy all selectors; none after the timeout.
func (v *ClusterView) types(ctx context.Context, expressions []string) []string {
	found := sets.New(string(gpu.KindMonitor))
	for c := range candidates(v.pools...) {
		kind := string(c.Shape.Kinds[c.Index].Type)
		if found.Has(kind) {
			continue
		}
		if ok, err := v.satisfies(ctx, expressions, c); ok && err == nil {
			found.Insert(kind)
		} else if ctx.Err() != nil {
			return nil
		}
	}
	return sets.List(found.Delete(string(gpu.KindMonitor)))
}

// satisfies evaluates the selectors in turn. An invalid one is false: the API server refuses it.
func (v *ClusterView) satisfies(ctx context.Context, expressions []string, c ask.Candidate) (bool, error) {
	failed, err := v.Failing(ctx, expressions, c)
	if errors.Is(err, ask.ErrInvalid) {
		err = nil
	}
	return failed == "", err
}

// candidates iterates over the published devices of pools.
func candidates(pools ...pool.Pool) iter.Seq[ask.Candidate] {
	return func(yield func(ask.Candidate) bool) {
		for _, p := range pools {
			for _, s := range p.Slices {
				for i := range s.Shape.Spec.Devices {
					if !yield(ask.Published(s.Shape, i)) {
						return
					}
				}
			}
		}
	}
}

// States of a DeviceClass.
const (
	ClassOK        = "ok"
	ClassUnmatched = "unmatched"
	ClassInvalid   = "invalid"
)

// ClassStatus is the state of an existing class, with a reason for people.
type ClassStatus struct{ State, Reason string }

// Ours reports whether a class selects only devices of this driver.
func (v *ClusterView) Ours(class string) bool {
	c := v.Class(class)
	return c != nil && v.driverOf(c) == v.driver
}

// driverOf returns the only driver whose devices a class selects, or "".
func (v *ClusterView) driverOf(class *resourceapi.DeviceClass) string {
	driver, _ := v.selected(selector.Expressions(class.Spec.Selectors))
	return driver
}

// Concerns reports whether a class is about this driver's devices, even without naming the driver.
func (v *ClusterView) Concerns(class *resourceapi.DeviceClass) bool {
	return v.concerns(selector.Expressions(class.Spec.Selectors))
}

// Evaluate returns whether an existing class would be denied now, fails on a device of the cluster, or matches none.
// After the time limit it returns an error; each attempt continues where the last one ended.
func (v *ClusterView) Evaluate(ctx context.Context, class *resourceapi.DeviceClass) (ClassStatus, error) {
	ctx, cancel := v.limited(ctx, evaluateFor)
	defer cancel()
	if errs := v.failing(ctx, class.Spec.Selectors); len(errs) > 0 {
		return ClassStatus{ClassInvalid, errs[0].Error()}, nil
	}
	if text := v.failingHere(ctx, class.Spec.Selectors); text != "" {
		return ClassStatus{ClassInvalid, text}, nil
	}
	for _, c := range class.Spec.Config {
		if c.Opaque == nil || c.Opaque.Driver != v.driver {
			continue
		}
		if _, err := v1beta1.Decode(c.Opaque.Parameters.Raw); err != nil {
			return ClassStatus{ClassInvalid, fmt.Sprintf("its parameters are refused when a pod is started: %v", err)},
				nil
		}
	}
	if !v.matches(ctx, selector.Expressions(class.Spec.Selectors)) {
		return ClassStatus{ClassUnmatched, "no device of the cluster as it is now satisfies its selectors"}, nil
	}
	return ClassStatus{State: ClassOK}, ctx.Err()
}

// probe is a device to evaluate selectors on.
type probe struct {
	description string
	ask.Candidate
}

// publishedProbes returns a device of each kind that the cluster has.
func (v *ClusterView) publishedProbes() (out []probe) {
	seen := map[pool.Kind]bool{}
	for _, p := range v.pools {
		for _, slice := range p.Slices {
			for i, kind := range slice.Shape.Kinds {
				if !seen[kind] {
					seen[kind] = true
					description := strings.TrimSpace(fmt.Sprintf("type %s and model %s %s", kind.Type, kind.Product,
						kind.Profile))
					out = append(out, probe{description + " on node " + p.Node, ask.Published(slice.Shape, i)})
				}
			}
		}
	}
	return out
}

// maxValues is the number of values of a class's selectors that invented devices have.
const maxValues = 64

// invented returns devices that can exist in some cluster: one of another driver, and of each kind one with only the
// attributes that every such device has. More of them have the values with which the expressions compare, because an
// expression can fail behind a comparison.
func (v *ClusterView) invented(expressions []string) []probe {
	out := []probe{{"another driver", ask.Candidate{Of: 1 + len(kinds),
		Device: cel.Device{Driver: "other.example.com"}}}}
	var values []selector.Comparison
	for _, e := range expressions {
		for _, c := range v.Read(e).Comparisons {
			if c.Domain == v.driver && c.ID != "type" && !c.Capacity && len(values) < maxValues {
				values = append(values, c)
			}
		}
	}
	for i, kind := range kinds {
		description := "this driver of type " + string(kind)
		base := v.minimal(kind)
		out = append(out, probe{description, ask.Candidate{Index: 1 + i, Of: 1 + len(kinds), Device: base}})
		first, seen := base, map[string]bool{}
		for _, c := range values {
			if !seen[c.ID] {
				first, seen[c.ID] = withValue(first, c), true
			}
		}
		for _, c := range values {
			if d := withValue(first, c); base.Attributes[resourceapi.QualifiedName(c.ID)].StringValue != nil {
				out = append(out, probe{fmt.Sprintf("%s with the %s %s", description, c.ID, c.Value),
					ask.Candidate{Device: d}})
			}
		}
	}
	return out
}

var kinds = []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor}

// withValue returns a device with another value of a string attribute that it has.
func withValue(d cel.Device, c selector.Comparison) cel.Device {
	name := resourceapi.QualifiedName(c.ID)
	if d.Attributes[name].StringValue == nil {
		return d
	}
	d.Attributes = maps.Clone(d.Attributes)
	d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &c.Value}
	return d
}

// examples are realistic values, so that string functions of selectors work on them.
var examples = map[string]string{
	"productName":           "NVIDIA H100 80GB HBM3",
	"architecture":          "Hopper",
	"profile":               "1g.10gb",
	"driverVersionRaw":      "580.126.09",
	"uuid":                  "GPU-00000000-0000-0000-0000-000000000000",
	"parentUUID":            "GPU-00000000-0000-0000-0000-000000000000",
	"driverVersion":         "580.126.9",
	"cudaDriverVersion":     "13.0.0",
	"cudaComputeCapability": "9.0.0",
	"isolation":             "hardware",
	string(deviceattribute.StandardDeviceAttributePCIBusID): "0000:00:00.0",
}

// minimal returns a device with only the attributes and capacities of every device of the kind.
func (v *ClusterView) minimal(kind gpu.Kind) cel.Device {
	d := cel.Device{
		Driver: v.driver, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for _, e := range resourceslices.Catalogue() {
		if !slices.Contains(e.Always, kind) {
			continue
		}
		name := resourceapi.QualifiedName(e.Name)
		text, number, truth := examples[e.Name], int64(1), false
		if e.Name == "type" {
			text = string(kind)
		}
		switch {
		case e.Capacity:
			d.Capacity[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(10<<30, resource.BinarySI)}
		case e.Type == "int":
			d.Attributes[name] = resourceapi.DeviceAttribute{IntValue: &number}
		case e.Type == "bool":
			d.Attributes[name] = resourceapi.DeviceAttribute{BoolValue: &truth}
		case e.Type == "version":
			d.Attributes[name] = resourceapi.DeviceAttribute{VersionValue: &text}
		default:
			d.Attributes[name] = resourceapi.DeviceAttribute{StringValue: &text}
		}
	}
	return d
}
