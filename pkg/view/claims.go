// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// ClaimState says how far a claim is.
type ClaimState string

// The states of a claim.
const (
	// Pending claims have no devices.
	Pending ClaimState = "pending"
	// Reserved claims have devices, for their pods.
	Reserved ClaimState = "reserved"
	// Unreserved claims have devices, but no pod. Devices of a claim that stays so are lost to others.
	Unreserved ClaimState = "unreserved"
	// Deleting claims wait for their pods to end, or for a finalizer.
	Deleting ClaimState = "deleting"
)

// Claim is a ResourceClaim that asks for, or has, devices of the driver.
type Claim struct {
	ClaimRef `json:",inline"`
	State    ClaimState `json:"state"`
	Node     string     `json:"node,omitempty"`
	Devices  []string   `json:"devices,omitempty"`
	// Shares is the number of devices that others can share.
	Shares int      `json:"shares,omitempty"`
	Pods   []string `json:"pods,omitempty"`
	// Created is the time of the claim's creation.
	Created metav1.Time `json:"created"`
	// Unpublished devices are allocated, but in no slice.
	Unpublished []string `json:"unpublished,omitempty"`
}

// Claims returns the claims that have devices of the driver, and the pending ones of its classes, by namespace and name.
func Claims(o Objects, classes []resourceapi.DeviceClass) []Claim {
	published := map[[2]string]bool{}
	for _, s := range o.Slices {
		if s.Shape == nil {
			continue
		}
		for _, d := range s.Shape.Devices {
			published[[2]string{s.Pool.Name, d.Name}] = true
		}
	}
	ours := map[string]bool{}
	for _, c := range classes {
		ours[c.Name] = ofDriver(o.Driver, c)
	}
	var out []Claim
	for _, c := range o.Claims {
		one := Claim{ClaimRef: ClaimRef{c.Namespace, c.Name}, State: Pending, Created: c.CreationTimestamp, Pods: podsOf(c)}
		if c.Status.Allocation != nil {
			one.State = Reserved
			if len(c.Status.ReservedFor) == 0 {
				one.State = Unreserved
			}
			for _, r := range c.Status.Allocation.Devices.Results {
				if r.Driver != o.Driver {
					continue
				}
				one.Node = NodeOfPool(r.Pool)
				one.Devices = append(one.Devices, r.Device)
				if r.ShareID != nil {
					one.Shares++
				}
				if !published[[2]string{r.Pool, r.Device}] {
					one.Unpublished = append(one.Unpublished, r.Device)
				}
			}
		}
		if c.DeletionTimestamp != nil {
			one.State = Deleting
		}
		if len(one.Devices) > 0 || c.Status.Allocation == nil && slices.ContainsFunc(c.Spec.Devices.Requests, func(r resourceapi.DeviceRequest) bool {
			return asks(r, ours)
		}) {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b Claim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// ofDriver reports whether a class selects devices of the driver. The driver's name stands in such a class's selector,
// or in the class's name.
func ofDriver(driver string, c resourceapi.DeviceClass) bool {
	return strings.HasSuffix(c.Name, driver) || slices.ContainsFunc(c.Spec.Selectors, func(s resourceapi.DeviceSelector) bool {
		return strings.Contains(ptr.Deref(s.CEL, resourceapi.CELDeviceSelector{}).Expression, driver)
	})
}

func asks(r resourceapi.DeviceRequest, classes map[string]bool) bool {
	if r.Exactly != nil && classes[r.Exactly.DeviceClassName] {
		return true
	}
	return slices.ContainsFunc(r.FirstAvailable, func(s resourceapi.DeviceSubRequest) bool { return classes[s.DeviceClassName] })
}
