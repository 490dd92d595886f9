// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpu-dra-driver/pkg/selector"
)

// Claim reviews the spec of a ResourceClaim, or of a template of them; path is where it stands in the object.
func (w *World) Claim(ctx context.Context, spec resourceapi.ResourceClaimSpec, path *field.Path) Result {
	var r Result
	requests := w.requests(spec.Devices)
	configs, errs := w.decode(spec.Devices.Config, path.Child("devices", "config"))
	r.Errors = append(errs, w.parameters(configs, requests)...)
	w.advise(ctx, &r, spec, requests)
	return r
}

// advise warns of what the cluster as it is cannot give.
func (w *World) advise(ctx context.Context, r *Result, spec resourceapi.ResourceClaimSpec, requests []request) {
	for _, q := range requests {
		w.class(r, q)
		where := "request " + q.name
		for _, s := range q.selectors {
			if s.CEL != nil {
				w.wishes(r, where, s.CEL.Expression, !q.alternative())
			}
		}
		if w.foreign(q) || q.driver == "" {
			continue
		}
		for _, name := range sortedNames(q.capacity) {
			if n := w.name(name, true); n.Domain == w.Driver && !w.names[n] {
				r.warn("%s: no device has the capacity %s%s", where, name, w.instead(n))
			}
		}
	}
	for _, c := range spec.Devices.Constraints {
		for _, attribute := range []*resourceapi.FullyQualifiedName{c.MatchAttribute, c.DistinctAttribute} {
			if attribute == nil {
				continue
			}
			if n := w.name(resourceapi.QualifiedName(*attribute), false); n.Domain == w.Driver && !w.names[n] {
				r.warn("constraints: no device has the attribute %s%s", *attribute, w.instead(n))
			}
		}
	}
	w.shares(r, spec, requests)
	if len(r.Errors)+len(r.Warnings) > 0 {
		return // What is wrong is said already.
	}
	if text := w.unsatisfiable(ctx, spec, requests); text != "" {
		r.warn("%s", text)
	}
}

// shares warns of two shares of one GPU in a claim, which Prepare refuses: the scheduler gives the first that fits, twice.
func (w *World) shares(r *Result, spec resourceapi.ResourceClaimSpec, requests []request) {
	for _, c := range spec.Devices.Constraints {
		if c.DistinctAttribute != nil {
			return
		}
	}
	var parts []string
	for _, q := range requests {
		_, named := q.capacity["memory"]
		_, qualified := q.capacity[resourceapi.QualifiedName(w.Driver+"/memory")]
		if (named || qualified) && q.driver == w.Driver && !q.alternative() && !q.admin {
			parts = append(parts, q.name)
		}
	}
	if len(parts) > 1 {
		r.warn("requests %s can get shares of one GPU, which a claim cannot have; add constraints: [{distinctAttribute: %s/uuid}], or ask for the sum in one request",
			strings.Join(parts, " and "), w.Driver)
	}
}

// class warns of a class that does not exist, where its name is like one of this driver's.
func (w *World) class(r *Result, q request) {
	if q.classFound != nil || q.class == "" || w.ClassNamed == nil {
		return
	}
	var ours []string
	for _, name := range w.Classes() {
		if c := w.ClassNamed(name); c != nil {
			if driver, _ := w.selected(c.Spec.Selectors, "", ""); driver == w.Driver {
				ours = append(ours, name)
			}
		}
	}
	slices.Sort(ours)
	const typos = 2
	if near := nearest(q.class, ours); near != "" && levenshtein.ComputeDistance(q.class, near) <= typos {
		r.warn("request %s: there is no DeviceClass %s; is %s meant? A pod waits until there is one", q.name, q.class, near)
	} else if strings.HasSuffix(q.class, "."+strings.TrimPrefix(w.Driver, "gpu.")) {
		r.warn("request %s: there is no DeviceClass %s; a pod waits until there is one", q.name, q.class)
	}
}

// wishes warns of names, and if wanted of values, that no device has.
func (w *World) wishes(r *Result, where, expression string, valued bool) {
	read, err := w.Cache.read(expression)
	if err != nil {
		return
	}
	said := map[selector.Name]bool{}
	for _, n := range read.Names {
		if n.Domain != w.Driver || w.names[n] || said[n] {
			continue
		}
		said[n] = true
		what := "attribute"
		if n.Capacity {
			what = "capacity"
		}
		r.warn("%s: no device has the %s %s%s", where, what, n.ID, w.instead(n))
	}
	for _, wish := range read.Wishes {
		values := w.values[wish.Name]
		if !valued || wish.Domain != w.Driver || len(values) == 0 || values[wish.Value] {
			continue
		}
		known := some(values)
		if near := nearest(wish.Value, sortedKeys(values)); near != "" {
			r.warn("%s: no device of the cluster has the %s %q; is %q meant?", where, wish.ID, wish.Value, near)
			continue
		}
		r.warn("%s: no device of the cluster has the %s %q; there are %s", where, wish.ID, wish.Value, strings.Join(known, ", "))
	}
}

// instead suggests a name that there is.
func (w *World) instead(n selector.Name) string {
	if near := nearest(n.ID, w.known(n.Capacity)); near != "" {
		return "; is " + near + " meant?"
	}
	other := n
	if other.Capacity = !n.Capacity; w.names[other] && n.Capacity {
		return "; it is an attribute, see device.attributes"
	} else if w.names[other] {
		return "; it is a capacity, see device.capacity"
	}
	return "; there are " + strings.Join(w.known(n.Capacity), ", ")
}
