// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
)

// classifier decides which selectors can select devices of the driver. It is not safe for concurrent use.
type classifier struct {
	driver   string
	slices   []*Slice
	classes  map[string]resourceapi.DeviceClass
	compiled *cel.Cache
	known    map[string]bool // By class.
}

func newClassifier(o Objects, classes []resourceapi.DeviceClass) *classifier {
	c := &classifier{
		driver: o.Driver, slices: o.Slices, classes: map[string]resourceapi.DeviceClass{}, known: map[string]bool{},
		compiled: cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}),
	}
	for _, one := range classes {
		c.classes[one.Name] = one
	}
	return c
}

// claim reports whether a request of the claim can get a device of the driver.
func (c *classifier) claim(spec resourceapi.ResourceClaimSpec) bool {
	for r := range selector.Requests(spec.Devices.Requests) {
		if c.request(r.DeviceClassName, r.Selectors) {
			return true
		}
	}
	return false
}

func (c *classifier) request(name string, own []resourceapi.DeviceSelector) bool {
	ours, known := c.known[name]
	if !known {
		class, exists := c.classes[name]
		ours = exists && c.selects(class.Spec.Selectors)
		c.known[name] = ours
	}
	return ours && (len(own) == 0 || c.selects(slices.Concat(c.classes[name].Spec.Selectors, own)))
}

// selects reports whether the selectors can select a device of the driver: they require this driver, or they require
// none and match a published device.
func (c *classifier) selects(all []resourceapi.DeviceSelector) bool {
	ours := false
	var programs []cel.CompilationResult
	for _, s := range all {
		if s.CEL == nil {
			return false
		}
		if r, err := selector.Read(s.CEL.Expression); err == nil && r.Driver != "" {
			if r.Driver != c.driver {
				return false
			}
			ours = true
		}
		programs = append(programs, c.compiled.GetOrCompile(s.CEL.Expression))
	}
	if ours {
		return true
	}
	tried := map[*pool.Shape]bool{}
	for _, s := range c.slices {
		if s.Shape == nil || tried[s.Shape] {
			continue
		}
		tried[s.Shape] = true
		if slices.ContainsFunc(s.Shape.Devices, func(d resourceapi.Device) bool { return c.matches(programs, d) }) {
			return true
		}
	}
	return false
}

func (c *classifier) matches(programs []cel.CompilationResult, d resourceapi.Device) bool {
	device := cel.Device{Driver: c.driver, Attributes: d.Attributes, Capacity: d.Capacity, AllowMultipleAllocations: d.AllowMultipleAllocations}
	return !slices.ContainsFunc(programs, func(p cel.CompilationResult) bool {
		if p.Error != nil {
			return true
		}
		ok, _, err := p.DeviceMatches(context.Background(), device)
		return err != nil || !ok
	})
}
