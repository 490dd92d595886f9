// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"maps"
	"slices"
)

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
			p.Node = NodeOfPool(r.Pool)
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
