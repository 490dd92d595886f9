// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package objects finds the MIG profiles that the objects of a cluster ask for, and whether they ask for NVLink groups.
//
// An object asks for every device that it could get: a restriction that the package cannot read does not restrict.
package objects

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/demand"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
)

// Cluster holds the objects that can ask for partitions and groups.
type Cluster struct {
	Driver string
	// Known are the profiles of the cluster's GPUs. Others are ignored.
	Known     []string
	Classes   []*resourceapi.DeviceClass
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
	// Pods are those without a node. The others have claims.
	Pods []*corev1.Pod
}

// Demand returns the known profiles that an object asks for, sorted, and demand.Groups. read analyses a selector; an
// unreadable one has an empty Reading.
func (c Cluster) Demand(read func(expression string) selector.Reading) []string {
	classes, resources := map[string]*resourceapi.DeviceClass{}, map[corev1.ResourceName]string{}
	for _, class := range c.Classes {
		classes[class.Name] = class
		resources[corev1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = class.Name
		if name := class.Spec.ExtendedResourceName; name != nil {
			resources[corev1.ResourceName(*name)] = class.Name
		}
	}
	asked, seen := map[string]bool{}, map[string]bool{}
	ask := func(class string, selectors []resourceapi.DeviceSelector) {
		of := classes[class]
		if of == nil {
			return // No device can be allocated by it.
		}
		// Most requests are alike.
		all := slices.Concat(selector.Expressions(of.Spec.Selectors), selector.Expressions(selectors))
		if key := strings.Join(all, "\x00"); !seen[key] {
			seen[key] = true
			profiles, groups := c.matching(all, read)
			for _, profile := range profiles {
				asked[profile] = true
			}
			asked[demand.Groups] = asked[demand.Groups] || groups
		}
	}
	requests := func(devices resourceapi.DeviceClaim) {
		for r := range selector.Requests(devices.Requests) {
			ask(r.DeviceClassName, r.Selectors)
		}
	}
	for _, claim := range c.Claims {
		requests(claim.Spec.Devices)
		if claim.Status.Allocation != nil {
			for _, r := range claim.Status.Allocation.Devices.Results {
				held, err := gpu.ParseName(r.Device)
				switch {
				case r.Driver != c.Driver || err != nil:
				case held.Kind == gpu.KindMIG:
					asked[held.Profile] = true
				case held.Kind == gpu.KindGroup:
					asked[demand.Groups] = true
				}
			}
		}
	}
	for _, template := range c.Templates {
		requests(template.Spec.Spec.Devices)
	}
	for _, pod := range c.Pods {
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for resource := range container.Resources.Limits {
				ask(resources[resource], nil)
			}
		}
	}
	maps.DeleteFunc(asked, func(what string, is bool) bool {
		return !is || what != demand.Groups && !slices.Contains(c.Known, what)
	})
	return slices.Sorted(maps.Keys(asked))
}

// matching returns the profiles whose partitions the expressions could select, and whether they could select a group.
func (c Cluster) matching(expressions []string, read func(string) selector.Reading) (profiles []string, groups bool) {
	profiles, groups = c.Known, true
	named, ours := false, false
	for _, e := range expressions {
		r := read(e)
		if r.Driver != "" && r.Driver != c.Driver {
			return nil, false
		}
		if only := r.Type(c.Driver); only != "" {
			groups = groups && only == string(gpu.KindGroup)
			if only != string(gpu.KindMIG) {
				profiles = nil
			}
		}
		ours = ours || r.Driver == c.Driver
		for _, n := range r.Names {
			named, ours = true, ours || n.Domain == c.Driver
		}
		if only, restricted := r.Required[selector.Name{Domain: c.Driver, ID: "profile"}]; restricted {
			groups = false // A group has no profile.
			profiles = slices.DeleteFunc(slices.Clone(profiles), func(p string) bool { return !slices.Contains(only, p) })
		}
	}
	if named && !ours {
		return nil, false // It reads another driver's attributes, which no partition and no group has.
	}
	return profiles, groups
}
