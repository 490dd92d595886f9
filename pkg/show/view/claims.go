// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/wire"
)

// ClaimState says how far a claim is.
type ClaimState string

// The states of a claim.
const (
	// Pending claims have no devices.
	pending ClaimState = "pending"
	// Reserved claims have devices, for their pods.
	reserved ClaimState = "reserved"
	// Unreserved claims have devices, but no pod. Devices of a claim that stays so are lost to others.
	unreserved ClaimState = "unreserved"
	// Deleting claims wait for their pods to end, or for a finalizer.
	deleting ClaimState = "deleting"
	// Ending claims have devices for pods that are all terminating.
	ending ClaimState = "ending"
)

// Claim is a ResourceClaim that asks for, or has, devices of the driver.
type Claim struct {
	ClaimRef `json:",inline"`
	State    ClaimState `json:"state"`
	Node     string     `json:"node,omitempty"`
	Devices  []string   `json:"devices,omitempty"`
	// Shares is the number of devices that others can share.
	Shares int `json:"shares,omitempty"`
	// Pods are those for which the claim is reserved. A PodGroup stands for its pods, as podgroup/NAME.
	Pods []string `json:"pods,omitempty"`
	// Created is the time of the claim's creation.
	Created metav1.Time `json:"created"`
	// Unpublished devices are allocated, but in no slice.
	Unpublished []string `json:"unpublished,omitempty"`
}

// Claims returns the claims that have devices of the driver, and the pending ones that can get some, by namespace and
// name.
func Claims(o Objects, classes []resourceapi.DeviceClass) []Claim {
	published := map[[2]string]bool{}
	for _, s := range o.Slices {
		if s.Shape == nil {
			continue
		}
		for _, d := range s.Shape.Spec.Devices {
			published[[2]string{s.Pool.Name, d.Name}] = true
		}
	}
	terminating := map[ClaimRef]bool{}
	for _, p := range o.Pods {
		terminating[ClaimRef{p.Namespace, p.Name}] = p.DeletionTimestamp != nil
	}
	ours := newClassifier(o, classes)
	var out []Claim
	for _, c := range o.Claims {
		one := Claim{
			ClaimRef: ClaimRef{c.Namespace, c.Name},
			State:    pending,
			Created:  c.CreationTimestamp,
			Pods:     podsOf(c),
		}
		if c.Status.Allocation != nil {
			one.State = reserved
			if len(c.Status.ReservedFor) == 0 {
				one.State = unreserved
			} else if !slices.ContainsFunc(one.Pods, func(pod string) bool {
				return !terminating[ClaimRef{c.Namespace, pod}]
			}) {
				one.State = ending
			}
			for r := range pool.Results(c.Status.Allocation, o.Driver) {
				one.Node = wire.NodeOf(r.Pool)
				one.Devices = append(one.Devices, r.Device)
				if r.ShareID != nil {
					one.Shares++
				}
				if !o.Failed(read.ResourceSlices) && !published[[2]string{r.Pool, r.Device}] {
					one.Unpublished = append(one.Unpublished, r.Device)
				}
			}
		}
		if c.DeletionTimestamp != nil {
			one.State = deleting
		}
		if len(one.Devices) > 0 || c.Status.Allocation == nil && ours.claim(c.Spec) {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b Claim) int { return a.compare(b.ClaimRef) })
	return out
}

// Pod is a pod for which claims with devices of the driver are reserved, or a PodGroup, as podgroup/NAME.
type Pod struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Node      string   `json:"node,omitempty"`
	Claims    []string `json:"claims"`
	Devices   []string `json:"devices"`
}

// Pods returns the pods by namespace and name. It reads them from the claims, so no right to list pods is needed.
func Pods(o Objects) []Pod {
	found := map[ClaimRef]*Pod{}
	for _, r := range results(o.Driver, o.Claims) {
		for _, name := range r.pods {
			key := ClaimRef{r.claim.Namespace, name}
			p := found[key]
			if p == nil {
				p = &Pod{Namespace: key.Namespace, Name: name}
				found[key] = p
			}
			p.Node = wire.NodeOf(r.Pool)
			p.Devices = append(p.Devices, r.Device)
			if !slices.Contains(p.Claims, r.claim.Name) {
				p.Claims = append(p.Claims, r.claim.Name)
			}
		}
	}
	var out []Pod
	for _, key := range slices.SortedFunc(maps.Keys(found), ClaimRef.compare) {
		out = append(out, *found[key])
	}
	return out
}
