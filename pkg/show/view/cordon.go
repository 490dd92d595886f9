// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	resourceclaim "k8s.io/dynamic-resource-allocation/resourceclaim"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// Uncordoned returns the devices that need the GPU and lack the taint of a cordon with this effect or a stronger one:
// free devices, and those of claims. Monitor devices stay in use.
func (g GPU) Uncordoned(effect resourceapi.DeviceTaintEffect) (free, held []string) {
	for _, d := range g.Devices {
		if parsed, err := gpu.ParseName(d.Name); err != nil || parsed.Kind == gpu.KindMonitor {
			continue
		}
		switch {
		case d.Cordon == effect, d.Cordon == resourceapi.DeviceTaintEffectNoExecute:
		case slices.ContainsFunc(g.Allocations, func(a Allocation) bool { return a.Device == d.Name }):
			held = append(held, d.Name)
		default:
			free = append(free, d.Name)
		}
	}
	return free, held
}

// Cordoned counts the devices that need the GPU and have the taint of a cordon. Those of an NVLink group can come from
// another GPU, so groups count only with the GPU's own devices.
func (g GPU) Cordoned() (own, all int) {
	for _, d := range g.Devices {
		if d.Cordon == "" {
			continue
		}
		all++
		if parsed, err := gpu.ParseName(d.Name); err == nil && parsed.Kind != gpu.KindGroup {
			own++
		}
	}
	return own, all
}

// Find returns the GPUs of a device: one for a GPU, a partition or a monitor device, the members for an NVLink group.
// device is NODE/DEVICE, or DEVICE if only one node has GPUs.
func Find(nodes []Node, device string) ([]GPU, error) {
	node, name, ok := strings.Cut(device, "/")
	if !ok && len(nodes) == 1 {
		node, name = nodes[0].Name, device
	} else if !ok {
		return nil, fmt.Errorf("device %q has no node: write NODE/DEVICE, such as n1/gpu-0000-1b-00-0", device)
	}
	if _, err := gpu.ParseName(name); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Name != node {
			continue
		}
		var out []GPU
		for _, g := range n.GPUs {
			if slices.ContainsFunc(g.Devices, func(d PublishedDevice) bool { return d.Name == name }) ||
				g.Name == name && len(g.Devices) > 0 {
				out = append(out, g)
			}
		}
		if len(out) == 0 {
			return nil, fmt.Errorf("node %s publishes no device %s", node, name)
		}
		return out, nil
	}
	return nil, fmt.Errorf("node %q publishes no devices", node)
}

// Eviction is a pod that loses a device. If Pod is podgroup/NAME, the pods of a PodGroup lose it.
type Eviction struct {
	Namespace, Pod string
	Claim, Device  string
}

// Evictions returns the pods that a taint with the effect NoExecute evicts: those with claims for devices that need the
// GPU, unless they tolerate the taint for ever.
func (g GPU) Evictions(o Objects) []Eviction {
	taint := resourceapi.DeviceTaint{Key: wire.CordonTaint, Effect: resourceapi.DeviceTaintEffectNoExecute}
	var out []Eviction
	for _, r := range results(o.Driver, o.Claims) {
		if parsed, err := gpu.ParseName(r.Device); err != nil || parsed.Kind == gpu.KindMonitor {
			continue
		}
		if !slices.ContainsFunc(g.Devices, func(d PublishedDevice) bool {
			return d.Pool == r.Pool && d.Name == r.Device
		}) ||
			slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool {
				return t.TolerationSeconds == nil && resourceclaim.ToleratesTaint(t, taint)
			}) {
			continue
		}
		for _, pod := range r.pods {
			if e := (Eviction{r.claim.Namespace, pod, r.claim.Name, r.Device}); !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out
}
