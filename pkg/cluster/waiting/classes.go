// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/selector"
)

// Classes are the DeviceClasses of a cluster, for questions about one driver. They are safe for concurrent use.
type Classes struct {
	driver string
	byName map[string]*resourceapi.DeviceClass
	selector.Resources
}

// NewClasses returns the classes of a list, which can have nil.
func NewClasses(driver string, all []*resourceapi.DeviceClass) Classes {
	c := Classes{driver, map[string]*resourceapi.DeviceClass{}, selector.ResourcesOf(all)}
	for _, class := range all {
		if class != nil {
			c.byName[class.Name] = class
		}
	}
	return c
}

// Selects reports whether a class exists and selects devices of the driver.
func (c Classes) Selects(name string) bool {
	class := c.byName[name]
	return class != nil && selector.Concern(class.Spec.Selectors, c.driver)
}

// Ours reports whether a class selects devices of the driver. A class that does not exist, or is too large to judge,
// counts if it is named like this driver's classes.
func (c Classes) Ours(name string) bool {
	if class := c.byName[name]; class != nil && !bounded.TooLarge(class) {
		return c.Selects(name)
	}
	return strings.HasSuffix(name, strings.TrimPrefix(c.driver, "gpu.")) || strings.HasPrefix(name, c.driver)
}

// OursByResource reports whether the class that the scheduler takes for an extended resource selects devices of the
// driver. A resource without a class counts if it is named like this driver's.
func (c Classes) OursByResource(name corev1.ResourceName) bool {
	if class := c.Class(name); class != nil {
		return c.Ours(class.Name)
	}
	if class, ok := strings.CutPrefix(string(name), resourceapi.ResourceDeviceClassPrefix); ok {
		return c.Ours(class)
	}
	return strings.HasPrefix(string(name), strings.TrimPrefix(c.driver, "gpu.")+"/")
}

// CouldBeOurs reports whether the class for an extended resource can select devices of the driver: it selects them, or
// it names no driver.
func (c Classes) CouldBeOurs(name corev1.ResourceName) bool {
	class := c.Class(name)
	if class == nil {
		return false
	}
	return c.Selects(class.Name) ||
		!slices.ContainsFunc(selector.Expressions(class.Spec.Selectors), func(e string) bool {
			r, err := selector.Read(e)
			return err != nil || r.Driver != "" || slices.ContainsFunc(r.Names, func(n selector.Name) bool {
				return n.Domain != "" && !strings.HasSuffix(n.Domain, "kubernetes.io")
			})
		})
}
