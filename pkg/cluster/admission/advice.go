// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// reviewClaim reviews the spec of a ResourceClaim or of a template; path is its path in the object.
func (v *ClusterView) reviewClaim(
	ctx context.Context, spec resourceapi.ResourceClaimSpec, path *field.Path, o Options,
) result {
	var r result
	if v.tooLarge(spec.Devices.Requests...) || len(spec.Devices.Constraints) > resourceapi.DeviceConstraintsMaxSize ||
		len(spec.Devices.Config) > resourceapi.DeviceConfigMaxSize {
		r.Errors = field.ErrorList{field.Forbidden(path.Child("devices"), tooLargeText)}
		return r
	}
	requests := v.requests(spec.Devices)
	configs, errs := v.decode(spec.Devices.Config, path.Child("devices", "config"))
	chosen, wrong := v.parameters(configs, requests)
	r.Errors = slices.Concat(errs, wrong, v.capacities(requests, path.Child("devices", "requests")))
	for _, c := range configs {
		if c.Sharing == nil || c.Sharing.MPS == nil || v.largest == 0 {
			continue
		}
		if limit, _ := c.Sharing.MPS.LimitFor(v1beta1.Device{}); limit > v.largest {
			r.warn("%s: a memory limit of %d MiB is more than any GPU of the cluster has (%d MiB), and Prepare "+
				"refuses it",
				c.path.Child("opaque", "parameters", "sharing", "mpsConfig"), limit>>20, v.largest>>20)
		}
	}
	v.advise(ctx, &r, spec, requests)
	known := len(r.Errors)+len(r.Warnings) > 0 // One warning is enough.
	if known && !o.DenyUnsatisfiable {
		return r
	}
	ctx, cancel := v.limited(ctx, 0)
	defer cancel()
	text, sure := v.unsatisfiable(ctx, spec, requests)
	r.cut = !sure
	switch {
	case text != "" && o.DenyUnsatisfiable:
		r.Unsatisfiable = field.ErrorList{field.Forbidden(path.Child("devices", "requests"),
			text+o.judgedBy+"; the administrator denies such requests (chart value webhook.denyUnsatisfiable)")}
	case text != "":
		r.warn("%s%s", text, o.judgedBy)
	case !known:
		v.growing(ctx, &r, requests)
		v.shares(&r, requests, chosen)
	}
	r.cut = r.cut || ctx.Err() != nil
	return r
}

// Explain reviews the spec of a claim for a person who asks why it waits. The errors are those for which a claim is
// denied, and the warnings those with which it is accepted.
func (v *ClusterView) Explain(ctx context.Context, spec resourceapi.ResourceClaimSpec) (errors, warnings []string) {
	r := v.reviewClaim(ctx, spec, field.NewPath("spec"), Options{})
	for _, e := range r.Errors {
		errors = append(errors, e.Error())
	}
	if !v.namesDriver(spec.Devices) {
		return nil, append(errors, r.Warnings...)
	}
	return errors, r.Warnings
}

// namesDriver reports whether the review of a claim can deny it: by the chart's condition, the claim has parameters for
// the driver. Other claims can be for other drivers.
func (v *ClusterView) namesDriver(devices resourceapi.DeviceClaim) bool {
	return slices.ContainsFunc(devices.Config, func(c resourceapi.DeviceClaimConfiguration) bool {
		return c.Opaque != nil && c.Opaque.Driver == v.driver
	})
}

// maxSelectors is the size of all selectors of an object, in bytes, that a review reads. The API server refuses objects
// over the other limits, but any program can post a review.
const maxSelectors = 64 << 10

// maxPatterns is the size of the regular expressions of a selector, in instructions. Repetitions in a selector of the
// API's largest size could take all memory of the controller.
const maxPatterns = 5000

// maxExponent is the largest decimal exponent of an amount that a review compares.
const maxExponent = 99

// tooLargeText is the error of objects that reviews do not read.
const tooLargeText = "it is larger than a review reads: at most 64 KiB of selectors, and the API's limits, " +
	"regular expressions with few repetitions, and amounts with exponents of two digits; use fewer or shorter selectors"

// tooLarge reports whether a review of the requests would take long.
func (v *ClusterView) tooLarge(requests ...resourceapi.DeviceRequest) bool {
	for _, r := range requests {
		if len(r.FirstAvailable) > resourceapi.FirstAvailableDeviceRequestMaxSize {
			return true
		}
	}
	size := 0
	var expressions []string
	for r := range selector.Requests(requests) {
		if len(r.Selectors) > resourceapi.DeviceSelectorsMaxSize ||
			r.Capacity != nil &&
				len(r.Capacity.Requests) > resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
			return true
		}
		if r.Capacity != nil {
			for _, amount := range r.Capacity.Requests {
				// The API server accepts any exponent. With billions of digits, a comparison would use up the memory.
				if exponent := -amount.AsDec().Scale(); exponent > maxExponent || exponent < -maxExponent {
					return true
				}
			}
		}
		for _, e := range selector.Expressions(r.Selectors) {
			if len(e) > resourceapi.CELSelectorExpressionMaxLength {
				return true
			}
			size += len(e)
			expressions = append(expressions, e)
		}
	}
	return size > maxSelectors || len(requests) > resourceapi.DeviceRequestsMaxSize ||
		slices.ContainsFunc(expressions, func(e string) bool { return v.Read(e).PatternSize > maxPatterns })
}

// advise warns of names and values that no device of the cluster has.
func (v *ClusterView) advise(ctx context.Context, r *result, spec resourceapi.ResourceClaimSpec, requests []request) {
	for _, q := range requests {
		if r.enough() || ctx.Err() != nil {
			return
		}
		v.unknownClass(r, q)
		where := "request " + q.Name
		for _, e := range selector.Expressions(q.Selectors) {
			v.checkAttributes(r, where, e, !q.Alternative())
		}
		if v.others(q) || q.driver == "" {
			continue
		}
		if q.Admin() && q.kind != gpu.KindMonitor {
			r.warn("%s: adminAccess waits while other claims have the GPU, because the scheduler counts it like them; "+
				"ask for the class monitor.%s, and tolerate %s", where, v.driver, wire.MonitorTaint)
		}
		for _, name := range slices.Sorted(maps.Keys(q.amounts())) {
			v.checkName(r, where, v.name(name, true), string(name))
		}
	}
	for _, c := range spec.Devices.Constraints {
		for _, attribute := range []*resourceapi.FullyQualifiedName{c.MatchAttribute, c.DistinctAttribute} {
			if attribute != nil {
				v.checkName(r, "constraints", v.name(resourceapi.QualifiedName(*attribute), false), string(*attribute))
			}
		}
	}
}

// shares warns of requests that need their own containers with MPS: a process reaches the MPS daemon of one device,
// with the limit of one request.
func (v *ClusterView) shares(r *result, requests []request, chosen map[string]*config) {
	var parts []string
	for _, q := range requests {
		_, named := q.amounts()["memory"]
		var strategy v1beta1.Strategy
		if c := chosen[q.Name]; c != nil && c.Sharing != nil {
			strategy = c.Sharing.Strategy
		}
		// A claim of all memory shares with no other.
		if named && strategy != "" && !q.Admin() && q.driver == v.driver && v.isolations.Len() > 0 &&
			!v.isolations.Has(sharing.Of(strategy).Isolation) {
			r.warn("request %s: it shares a GPU by %s, and by default other claims use %s; on one GPU, the second "+
				"claim is not prepared until the first one ends (DeviceInUse). Leave the strategy out, or set it for "+
				"the nodes (chart value sharing.config)", q.Name, strategy, strings.Join(sets.List(v.isolations),
				" or "))
		}
		if q.driver != v.driver || q.Alternative() || q.Admin() || strategy != "" && !sharing.Of(strategy).Daemon ||
			strategy == "" && !named {
			continue
		}
		parts = append(parts, q.Name)
		if q.Devices() != 1 {
			r.warn("request %s: its shares are of different GPUs, and by MPS a container reaches one; ask for one "+
				"share in a request, or name the strategy TimeSlicing in a GpuConfig", q.Name)
		}
	}
	if len(parts) > 1 {
		r.warn("requests %s: by MPS a container has the share of one request; name it in the container "+
			"(resources.claims[].request)", strings.Join(parts, " and "))
	}
}

// unknownClass warns of a missing class whose name resembles one of this driver's.
func (v *ClusterView) unknownClass(r *result, q request) {
	if q.Class != nil || q.DeviceClassName == "" || len(q.DeviceClassName) > validation.DNS1123SubdomainMaxLength {
		return
	}
	var ours []string
	for _, c := range v.AllClasses() {
		if v.driverOf(c) == v.driver {
			ours = append(ours, c.Name)
		}
	}
	slices.Sort(ours)
	const maxTypos = 2
	hint := ""
	if strings.HasPrefix(q.DeviceClassName, "mig-") {
		hint = v.profileHint()
	}
	if near := Nearest(q.DeviceClassName, ours); near != "" && distance(q.DeviceClassName, near) <= maxTypos {
		r.warn("request %s: there is no DeviceClass %s; is %s meant? A pod waits until there is one%s", q.Name,
			q.DeviceClassName, near, hint)
	} else if strings.HasSuffix(q.DeviceClassName, "."+strings.TrimPrefix(v.driver, "gpu.")) {
		r.warn("request %s: there is no DeviceClass %s; a pod waits until there is one%s", q.Name, q.DeviceClassName,
			hint)
	}
}

// profileHint ends warnings of missing partitions, because no slice shows the profiles that the settings leave out. It
// is empty in a cluster without MIG.
func (v *ClusterView) profileHint() string {
	if !v.migCapable {
		return ""
	}
	return ". Nodes publish only the profiles of their settings (chart value publish)"
}

// checkAttributes warns of names, and if valued is set of values, that no device has.
func (v *ClusterView) checkAttributes(r *result, where, expression string, valued bool) {
	read := v.Read(expression)
	for i, n := range read.Names {
		if !r.enough() && !slices.Contains(read.Names[:i], n) {
			v.checkName(r, where, n, n.ID)
		}
	}
	for _, c := range read.Comparisons {
		values := v.values[c.Name]
		if r.enough() {
			return
		}
		if !valued || c.Domain != v.driver || len(values) == 0 || values.Has(c.Value) {
			continue
		}
		hint := ""
		if c.ID == "profile" {
			hint = v.profileHint()
		}
		if near := Nearest(c.Value, sets.List(values)); near != "" {
			r.warn("%s: no device of the cluster has the %s %q; is %q meant?%s", where, c.ID, c.Value, near,
				strings.TrimPrefix(hint, "."))
			continue
		}
		r.warn("%s: no device of the cluster has the %s %q; there are %s%s", where, c.ID, c.Value,
			strings.Join(few(values), ", "), hint)
	}
}

// checkName warns of a name in the driver's domain that no device has. shown is the name in the object.
func (v *ClusterView) checkName(r *result, where string, n selector.Name, shown string) {
	if n.Domain != v.driver || v.names.Has(n) || r.enough() {
		return
	}
	kind := "attribute"
	if n.Capacity {
		kind = "capacity"
	}
	r.warn("%s: no device has the %s %s%s", where, kind, shown, v.instead(n))
}

// Correct returns a selector with names of attributes and capacities of the driver corrected that no device has, and
// says which. Without such a name the change is empty.
func (v *ClusterView) Correct(expression string) (corrected, change string) {
	corrected = expression
	var changes []string
	for _, n := range v.Read(expression).Names {
		known := v.known(n.Capacity)
		written, want := n.ID, ""
		switch {
		case n.Domain == v.driver && !v.names.Has(n):
			want = Nearest(n.ID, slices.Sorted(maps.Keys(known)))
			if known[want] != want {
				continue // It is in another domain.
			}
		case n.Domain != v.driver && known[n.ID] == n.ID && strings.HasSuffix(v.driver, n.Domain):
			written, want = strconv.Quote(n.Domain), strconv.Quote(v.driver)
		}
		if want == "" {
			continue
		}
		place, err := regexp.Compile(`(^|[^A-Za-z0-9_])` + regexp.QuoteMeta(written) + `($|[^A-Za-z0-9_])`)
		if err != nil || !place.MatchString(corrected) {
			continue
		}
		corrected = place.ReplaceAllString(corrected, "${1}"+strings.ReplaceAll(want, "$", "$$")+"${2}")
		changes = append(changes, fmt.Sprintf("write %s instead of %s", want, written))
	}
	return corrected, strings.Join(changes, ", ")
}

// instead suggests a name that a device of the cluster has, in any domain.
func (v *ClusterView) instead(n selector.Name) string {
	known := v.known(n.Capacity)
	if near := Nearest(n.ID, slices.Sorted(maps.Keys(known))); near != "" {
		return "; is " + known[near] + " meant?"
	}
	if _, other := v.known(!n.Capacity)[n.ID]; other && n.Capacity {
		return "; it is an attribute, see device.attributes"
	} else if other {
		return "; it is a capacity, see device.capacity"
	}
	return "; there are " + strings.Join(slices.Sorted(maps.Values(known)), ", ")
}

// Nearest returns the candidate most similar to the text, or "": a prefix or an extension of it, otherwise the one with
// the smallest distance. The first of equals wins.
func Nearest(text string, candidates []string) string {
	if len(text) > validation.DNS1123SubdomainMaxLength {
		return "" // No name is as long.
	}
	best, least := "", len(text)/2+1
	lower := strings.ToLower(text)
	for _, c := range candidates {
		l := strings.ToLower(c)
		d := distance(lower, l)
		if len(text) >= 3 && (strings.HasPrefix(l, lower) || strings.HasPrefix(lower, l)) {
			d = 0
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is the number of bytes to insert, delete or replace from one text to the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0]++
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, replaced)
		}
	}
	return row[len(b)]
}

func few(values sets.Set[string]) []string {
	out := sets.List(values)
	const maxValues = 6
	if len(out) > maxValues {
		out = append(out[:maxValues:maxValues], "…")
	}
	return out
}
