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
	ask.Asker
	driver string
	slices []*pool.Slice
	known  map[string]bool // By class.
}

func newClassifier(o Objects, classes []resourceapi.DeviceClass) *classifier {
	return &classifier{
		Asker:  ask.Of(pointers(classes), ""),
		driver: o.Driver,
		slices: o.Slices,
		known:  map[string]bool{},
	}
}

func pointers[T any](all []T) (out []*T) {
	for i := range all {
		out = append(out, &all[i])
	}
	return out
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
	class := c.Class(name)
	if class == nil {
		return false
	}
	ours, known := c.known[name]
	if !known {
		ours = c.selects(class.Spec.Selectors)
		c.known[name] = ours
	}
	return ours && (len(own) == 0 || c.selects(slices.Concat(class.Spec.Selectors, own)))
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
			if failed, err := c.Failing(context.Background(), expressions, ask.Published(s.Shape, i)); failed == "" &&
				err == nil {
				return true
			}
		}
	}
	return false
}
