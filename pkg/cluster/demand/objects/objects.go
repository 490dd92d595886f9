// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package objects finds the MIG profiles that the objects of a cluster ask for, and whether they ask for NVLink groups,
// monitor devices and shares.
//
// An object asks for every device that it could get: a restriction that the package cannot read does not restrict.
package objects

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire/demand"
)

// Ask is one thing that an object asks for. It is set in one field, or in Class and Selectors.
type Ask struct {
	// Class is the class of a request, and Selectors has the request's expressions, each with a zero byte before it.
	// Admin means that it asks for admin access, as claims of monitor devices must.
	Class, Selectors string
	Admin            bool
	// Everywhere means that the request does not wait for devices that only some nodes publish: it has a later
	// alternative, or takes all devices of a node.
	Everywhere bool
	// Part means that the request names a capacity, so it asks for a share.
	Part bool
	// Resource is an extended resource.
	Resource corev1.ResourceName
	// Held is a MIG profile, demand.Groups, demand.Monitors or demand.Shares, of an allocated device.
	Held string
}

// AsksOf returns what a claim, a template or a pod asks for, each thing once. A claim or template that is
// too large to judge asks for nothing, because its selectors are unknown; its devices count.
func AsksOf(object any, driver string) (out []Ask) {
	add := func(a Ask) {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	requests := func(of runtime.Object, devices resourceapi.DeviceClaim) {
		if bounded.TooLarge(of) {
			return
		}
		last := map[string]bool{} // The last alternatives.
		for _, r := range devices.Requests {
			if n := len(r.FirstAvailable); n > 0 {
				last[r.Name+"/"+r.FirstAvailable[n-1].Name] = true
			}
		}
		for r := range selector.Requests(devices.Requests) {
			a := Ask{
				Class: r.DeviceClassName, Admin: ptr.Deref(r.AdminAccess, false),
				Part:       r.Capacity != nil && len(r.Capacity.Requests) > 0,
				Everywhere: r.AllocationMode == resourceapi.DeviceAllocationModeAll || r.Parent != "" && !last[r.Name],
			}
			if all := selector.Expressions(r.Selectors); len(all) > 0 {
				a.Selectors = "\x00" + strings.Join(all, "\x00")
			}
			add(a)
		}
	}
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		requests(o, o.Spec.Devices)
		for _, r := range results(o) {
			_, held := holds(r, driver)
			for _, what := range held {
				add(Ask{Held: what})
			}
		}
	case *resourceapi.ResourceClaimTemplate:
		requests(o, o.Spec.Spec.Devices)
	case *corev1.Pod:
		for _, resource := range waiting.Resources(o) {
			add(Ask{Resource: resource})
		}
	}
	return out
}

// Asks counts the objects that ask for each thing, so that a pass over them does not depend on the number of objects.
// The zero Asks is empty.
type Asks struct{ count map[Ask]int }

// Replace removes what the earlier version of an object asked for, and adds what the later one asks for. Either can be
// nil. It reports whether they differ.
func (a *Asks) Replace(was, is []Ask) (changed bool) {
	if slices.Equal(was, is) {
		return false
	}
	if a.count == nil {
		a.count = map[Ask]int{}
	}
	for _, one := range is {
		a.count[one]++
	}
	for _, one := range was {
		if a.count[one]--; a.count[one] <= 0 {
			delete(a.count, one)
		}
	}
	return true
}

// All returns what any object asks for.
func (a *Asks) All() []Ask {
	return slices.Collect(maps.Keys(a.count))
}

// Cluster holds what can be asked for, and what is.
type Cluster struct {
	Driver string
	// Known are the profiles of the cluster's GPUs. Others are ignored.
	Known   []string
	Classes []*resourceapi.DeviceClass
	// Asked is of claims, of templates, and of pods without a node. The other pods have claims.
	Asked []Ask
}

// Everywhere returns the cluster with the requests that do not wait for devices which only some nodes publish.
func (c Cluster) Everywhere() Cluster {
	c.Asked = slices.DeleteFunc(slices.Clone(c.Asked), func(a Ask) bool { return !a.Everywhere })
	return c
}

// Demand returns the known profiles that an object asks for, sorted, with demand.Groups, demand.Monitors and
// demand.Shares. read analyses a selector; an unreadable one has an empty Reading.
func (c Cluster) Demand(read func(expression string) selector.Reading) []string {
	classes := c.classes()
	asked := map[string]bool{}
	for _, a := range c.Asked {
		if a.Held != "" {
			asked[a.Held] = true
			continue
		}
		of := classes.of(a)
		if of == nil || bounded.TooLarge(of) {
			continue // No device can be allocated by it, or its selectors are unknown.
		}
		expressions := a.expressions(of)
		part := a.Part || slices.ContainsFunc(expressions, ofShares.MatchString)
		for _, what := range c.matching(expressions, read) {
			if what == demand.Monitors && !a.Admin || what == demand.Shares && !part {
				continue
			}
			asked[what] = true
		}
	}
	maps.DeleteFunc(asked, func(what string, _ bool) bool {
		return what != demand.Groups && what != demand.Monitors && what != demand.Shares &&
			!slices.Contains(c.Known, what)
	})
	return slices.Sorted(maps.Keys(asked))
}

// classes finds the class that an object asks for.
type classes struct {
	byName    map[string]*resourceapi.DeviceClass
	resources selector.Resources
}

func (c Cluster) classes() classes {
	out := classes{map[string]*resourceapi.DeviceClass{}, selector.ResourcesOf(c.Classes)}
	for _, class := range c.Classes {
		out.byName[class.Name] = class
	}
	return out
}

func (c classes) of(a Ask) *resourceapi.DeviceClass {
	if a.Resource != "" {
		return c.resources.Class(a.Resource)
	}
	return c.byName[a.Class]
}

// expressions returns the selectors of a request and its class.
func (a Ask) expressions(of *resourceapi.DeviceClass) []string {
	return slices.Concat(selector.Expressions(of.Spec.Selectors), strings.Split(a.Selectors, "\x00")[1:])
}

// Expressions returns the selectors of what an object asks for, and its class's.
func (c Cluster) Expressions(a Ask) []string {
	if of := c.classes().of(a); of != nil {
		return a.expressions(of)
	}
	return nil
}

// ofShares finds what only shareable devices have: allowMultipleAllocations, the capacities compute and shares, and an
// isolation other than hardware.
var ofShares = regexp.MustCompile(`\b(allowMultipleAllocations|isolation|compute|shares)\b`)

// matching returns the profiles whose partitions the expressions could select, and the other kinds of devices.
func (c Cluster) matching(expressions []string, read func(string) selector.Reading) []string {
	profiles := c.Known
	kinds := map[gpu.Kind]string{
		gpu.KindGroup:   demand.Groups,
		gpu.KindMonitor: demand.Monitors,
		gpu.KindGPU:     demand.Shares,
		gpu.KindMIG:     demand.Shares,
	}
	named, ours := false, false
	for _, e := range expressions {
		r := read(e)
		if r.Driver != "" && r.Driver != c.Driver {
			return nil
		}
		if only := r.Type(c.Driver); only != "" {
			maps.DeleteFunc(kinds, func(k gpu.Kind, _ string) bool { return only != string(k) })
			if only != string(gpu.KindMIG) {
				profiles = nil
			}
		}
		ours = ours || r.Driver == c.Driver
		for _, n := range r.Names {
			named, ours = true, ours || n.Domain == c.Driver
		}
		if only, restricted := r.Required[selector.Name{Domain: c.Driver, ID: "profile"}]; restricted {
			// Only partitions have a profile.
			maps.DeleteFunc(kinds, func(k gpu.Kind, _ string) bool { return k != gpu.KindMIG })
			profiles = slices.DeleteFunc(slices.Clone(profiles),
				func(p string) bool { return !slices.Contains(only, p) })
		}
	}
	if named && !ours {
		return nil // It reads another driver's attributes, which no device of this one has.
	}
	return slices.AppendSeq(slices.Clone(profiles), maps.Values(kinds))
}
