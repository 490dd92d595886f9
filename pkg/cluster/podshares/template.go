// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podshares

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

// templateName is a name that the policy gives: an amount of memory in MiB, or in thousandths of a GPU, and percent of
// the SMs.
var templateName = regexp.MustCompile(
	`^gpu-share-(?:([1-9][0-9]{0,12})mi|([1-9][0-9]{0,2}|1000)m)(?:-compute-([1-9][0-9]?|100))?$`)

// Named reports whether a template has a name that the policy gives.
func Named(name string) bool { return templateName.MatchString(name) }

// mostSizes is the number of alternatives that a request can have.
const mostSizes = resourceapi.FirstAvailableDeviceRequestMaxSize

// leastShare is the least share of memory that a device offers, in MiB.
const leastShare = 16

// Template returns the template of a name that the policy gives. The memory sizes of the cluster's GPUs, in bytes and
// sorted, decide about a fraction: each one is an alternative with its part. It returns nil if there is none.
func Template(driver, namespace, name string, sizes []int64) *resourceapi.ResourceClaimTemplate {
	m := templateName.FindStringSubmatch(name)
	thousandths, _ := strconv.ParseInt(m[2], 10, 64)
	capacity := func(mebibytes int64) *resourceapi.CapacityRequirements {
		const most = 1 << 42 // No policy gives a name with more.
		memory := resource.NewQuantity(min(mebibytes, most)<<20, resource.BinarySI)
		c := map[resourceapi.QualifiedName]resource.Quantity{"memory": *memory}
		if m[3] != "" {
			c["compute"] = resource.MustParse(m[3])
		}
		return &resourceapi.CapacityRequirements{Requests: c}
	}
	type selector = resourceapi.DeviceSelector
	alternative := func(name string, mebibytes int64, selectors ...selector) resourceapi.DeviceSubRequest {
		return resourceapi.DeviceSubRequest{
			Name:            name,
			DeviceClassName: driver,
			AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
			Count:           1,
			Selectors:       selectors,
			Capacity:        capacity(mebibytes),
		}
	}
	var alternatives []resourceapi.DeviceSubRequest
	if mebibytes, err := strconv.ParseInt(m[1], 10, 64); err == nil {
		alternatives = append(alternatives, alternative("", mebibytes))
	} else {
		for _, size := range sizes[:min(len(sizes), mostSizes)] {
			expression := fmt.Sprintf(`device.capacity[%q].memory.compareTo(quantity(%q)) == 0`, driver,
				resource.NewQuantity(size, resource.BinarySI))
			alternatives = append(alternatives, alternative(fmt.Sprintf("of-%dmi", size>>20),
				max(leastShare, size>>20*thousandths/1000),
				selector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}))
		}
	}
	request := resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: alternatives}
	switch len(alternatives) {
	case 0:
		return nil
	case 1: // Some schedulers allocate wrongly for requests with alternatives.
		request.FirstAvailable = nil
		request.Exactly = &resourceapi.ExactDeviceRequest{
			DeviceClassName: driver,
			AllocationMode:  alternatives[0].AllocationMode,
			Count:           1,
			Selectors:       alternatives[0].Selectors,
			Capacity:        alternatives[0].Capacity,
		}
	}
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{Label(driver): "true"},
		},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
			Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request}},
		}},
	}
}

// Label is on pods that the policy has changed, on their templates, and on namespaces whose pods it may change.
func Label(driver string) string { return driver + "/pod-shares" }

// MemorySizes returns the sizes of the memory of whole GPUs in bytes, sorted. Nodes that are alike share their shapes.
func MemorySizes(pools []pool.Pool) []int64 {
	seen, out := sets.New[*pool.Shape](), sets.New[int64]()
	for _, p := range pools {
		for _, s := range p.Slices {
			if seen.Has(s.Shape) {
				continue
			}
			seen.Insert(s.Shape)
			for i, d := range s.Shape.Spec.Devices {
				if memory, ok := d.Capacity["memory"]; ok && s.Shape.Kinds[i].Type == gpu.KindGPU {
					out.Insert(memory.Value.Value())
				}
			}
		}
	}
	return slices.Sorted(slices.Values(out.UnsortedList()))
}
