// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package slicetest

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Refusals returns the reasons for which API servers of Kubernetes 1.34 to 1.37 refuse a slice of the driver, by the
// rules of their validation (k8s.io/kubernetes/pkg/apis/resource/validation).
func Refusals(spec resourceapi.ResourceSliceSpec) []string {
	c := refusals{}
	c.atMost("slice", "counter sets", len(spec.SharedCounters), resourceapi.ResourceSliceMaxCounterSets)
	if len(spec.SharedCounters) > 0 && len(spec.Devices) > 0 {
		c.add("slice", "it has devices and counter sets")
	}
	devices := resourceapi.ResourceSliceMaxDevices
	names := sets.New[string]()
	for _, d := range spec.Devices {
		if len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 {
			devices = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
		if names.Has(d.Name) {
			c.add(d.Name, "the name is used twice")
		}
		names.Insert(d.Name)
		c.device(d)
	}
	c.atMost("slice", "devices", len(spec.Devices), devices)
	for _, set := range spec.SharedCounters {
		c.label(set.Name, set.Name)
		c.counters(set.Name, set.Counters, resourceapi.ResourceSliceMaxCountersPerCounterSet)
	}
	return c
}

type refusals []string

func (c *refusals) add(subject, format string, args ...any) {
	*c = append(*c, subject+": "+fmt.Sprintf(format, args...))
}

func (c *refusals) atMost(subject, what string, n, limit int) {
	if n > limit {
		c.add(subject, "%d %s, the limit is %d", n, what, limit)
	}
}

func (c *refusals) label(subject, name string) {
	for _, problem := range validation.IsDNS1123Label(name) {
		c.add(subject, "name %q: %s", name, problem)
	}
}

func (c *refusals) counters(subject string, of map[string]resourceapi.Counter, limit int) {
	c.atMost(subject, "counters", len(of), limit)
	if len(of) == 0 {
		c.add(subject, "no counters")
	}
	for name, counter := range of {
		c.label(subject, name)
		if counter.Value.Sign() < 0 {
			c.add(subject, "counter %s is %s", name, counter.Value.String())
		}
	}
}

func (c *refusals) device(d resourceapi.Device) {
	c.label(d.Name, d.Name)
	c.atMost(d.Name, "attributes and capacities", len(d.Attributes)+len(d.Capacity),
		resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice)
	c.atMost(d.Name, "taints", len(d.Taints), resourceapi.DeviceTaintsMaxLength)
	c.atMost(d.Name, "counter consumptions", len(d.ConsumesCounters),
		resourceapi.ResourceSliceMaxDeviceCounterConsumptionsPerDevice)
	for name, a := range d.Attributes {
		c.qualified(d.Name, name)
		c.attribute(d.Name+", "+string(name), a)
	}
	for name, capacity := range d.Capacity {
		c.qualified(d.Name, name)
		c.policy(d.Name+", "+string(name), d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations, capacity)
	}
	for _, t := range d.Taints {
		for _, problem := range append(validation.IsQualifiedName(t.Key), validation.IsValidLabelValue(t.Value)...) {
			c.add(d.Name, "taint %s=%s: %s", t.Key, t.Value, problem)
		}
		switch t.Effect {
		case resourceapi.DeviceTaintEffectNone, resourceapi.DeviceTaintEffectNoSchedule,
			resourceapi.DeviceTaintEffectNoExecute:
		default:
			c.add(d.Name, "taint %s has the effect %q", t.Key, t.Effect)
		}
	}
	used := sets.New[string]()
	for _, use := range d.ConsumesCounters {
		if used.Has(use.CounterSet) {
			c.add(d.Name, "it consumes %s twice", use.CounterSet)
		}
		used.Insert(use.CounterSet)
		c.counters(d.Name, use.Counters, resourceapi.ResourceSliceMaxCountersPerDeviceCounterConsumption)
	}
}

func (c *refusals) qualified(device string, name resourceapi.QualifiedName) {
	domain, id, found := strings.Cut(string(name), "/")
	if !found {
		domain, id = "example.com", domain
	}
	for _, problem := range append(validation.IsDNS1123Subdomain(domain), validation.IsCIdentifier(id)...) {
		c.add(device, "name %q: %s", name, problem)
	}
	c.atMost(device, "bytes of the domain of "+string(name), len(domain), resourceapi.DeviceMaxDomainLength)
	c.atMost(device, "bytes of the name "+id, len(id), resourceapi.DeviceMaxIDLength)
}

func (c *refusals) attribute(subject string, a resourceapi.DeviceAttribute) {
	forms := 0
	for _, set := range []bool{a.BoolValue != nil, a.IntValue != nil, a.StringValue != nil, a.VersionValue != nil} {
		if set {
			forms++
		}
	}
	if forms != 1 || len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues) > 0 {
		c.add(subject, "%d values, or a list", forms)
	}
	for _, text := range []*string{a.StringValue, a.VersionValue} {
		if text != nil {
			c.atMost(subject, "bytes", len(*text), resourceapi.DeviceAttributeMaxValueLength)
			if !utf8.ValidString(*text) {
				c.add(subject, "%q is not UTF-8", *text)
			}
		}
	}
	if v := a.VersionValue; v != nil && !strictSemver.MatchString(*v) {
		c.add(subject, "%q is not a semantic version", *v)
	}
}

// policy checks the arithmetic of a request policy.
func (c *refusals) policy(subject string, shareable bool, capacity resourceapi.DeviceCapacity) {
	p := capacity.RequestPolicy
	switch {
	case p == nil:
		return
	case !shareable:
		c.add(subject, "a request policy needs allowMultipleAllocations")
		return
	case p.Default == nil && (len(p.ValidValues) > 0 || p.ValidRange != nil):
		c.add(subject, "a request policy needs a default")
		return
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		c.add(subject, "values and a range")
	}
	c.atMost(subject, "valid values", len(p.ValidValues), maxValidValues)
	found := len(p.ValidValues) == 0
	for i, v := range p.ValidValues {
		found = found || v.Cmp(*p.Default) == 0
		if v.Cmp(capacity.Value) > 0 || i > 0 && v.Cmp(p.ValidValues[i-1]) <= 0 {
			c.add(subject, "%s is larger than %s, or not in order", v.String(), capacity.Value.String())
		}
	}
	if !found {
		c.add(subject, "the default %s is not a valid value", p.Default.String())
	}
	r := p.ValidRange
	if r == nil {
		return
	}
	most := capacity.Value
	if r.Max != nil {
		most = *r.Max
	}
	if r.Min == nil || r.Min.Cmp(*p.Default) > 0 || p.Default.Cmp(most) > 0 || most.Cmp(capacity.Value) > 0 {
		c.add(subject, "default %s, range %s to %s of %s", p.Default.String(), text(r.Min), text(r.Max),
			capacity.Value.String())
		return
	}
	if r.Step == nil {
		return
	}
	if next := r.Min.DeepCopy(); r.Step.Sign() <= 0 {
		c.add(subject, "step %s", r.Step.String())
		return
	} else if next.Add(*r.Step); next.Cmp(capacity.Value) > 0 {
		c.add(subject, "one step from the minimum is %s of %s", next.String(), capacity.Value.String())
	}
	for _, q := range []*resource.Quantity{p.Default, r.Max} {
		if q != nil && (q.Value()-r.Min.Value())%r.Step.Value() != 0 {
			c.add(subject, "%s is not a multiple of the step %s from %s", q.String(), r.Step.String(), r.Min.String())
		}
	}
}

// maxValidValues is the API's limit of the values of a request policy, which the types do not export.
const maxValidValues = 10

// strictSemver is the pattern of semver.org for the versions that the driver publishes: no leading zeros.
var strictSemver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$`)

func text(q *resource.Quantity) string {
	if q == nil {
		return "none"
	}
	return q.String()
}
