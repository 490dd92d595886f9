// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
)

// classifier decides which selectors can select devices of the driver. It is not safe for concurrent use.
type classifier struct {
	*ask.Evaluator
	driver  string
	slices  []*pool.Slice
	classes map[string]resourceapi.DeviceClass
	known   map[string]bool // By class.
}

func newClassifier(o Objects, classes []resourceapi.DeviceClass) *classifier {
	c := &classifier{
		Evaluator: ask.NewEvaluator(), driver: o.Driver, slices: o.Slices, classes: map[string]resourceapi.DeviceClass{}, known: map[string]bool{},
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
	expressions, ours := selector.Expressions(all), false
	if len(expressions) < len(all) {
		return false
	}
	for _, e := range expressions {
		switch c.Read(e).Driver {
		case "":
		case c.driver:
			ours = true
		default:
			return false
		}
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
		for i := range s.Shape.Spec.Devices {
			if failed, err := c.Failing(context.Background(), expressions, ask.Published(s.Shape, i)); failed == "" && err == nil {
				return true
			}
		}
	}
	return false
}
