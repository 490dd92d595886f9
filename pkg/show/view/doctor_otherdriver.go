// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/pkg/wire"
)

const (
	// nvidiaDriver is the name of NVIDIA's DRA driver, and the default of this one.
	nvidiaDriver = "gpu.nvidia.com"
	// deployLabel is "true" on nodes to which the GPU operator deploys NVIDIA's DRA driver for a GPUCluster
	// (controllers/state_manager.go and manifests/state-dra-driver of github.com/NVIDIA/gpu-operator, August 2026).
	// Without a GPUCluster it is this driver's, for upgrades of the kernel driver: docs/driver-upgrade.md.
	deployLabel = "nvidia.com/gpu.deploy.dra-driver"
	keepOne     = "Keep one of the two on a node: delete the GPUCluster, or keep this driver off the node by the " +
		"chart value kubeletPlugin.nodeSelector"
)

// otherPools returns the devices of pools of this driver's name that it did not write, by node and pool. This driver's
// pools always had the names of PoolName and MonitorPoolName. NVIDIA's driver names a pool like its node, and its
// devices gpu-0.
func (d Diagnosis) otherPools() map[string]map[string][]string {
	out := map[string]map[string][]string{}
	for _, s := range d.Slices {
		if s.Shape == nil || s.Possible || s.Pool.Name == wire.PoolName(s.Node) ||
			s.Pool.Name == wire.MonitorPoolName(s.Node) {
			continue
		}
		for _, device := range s.Shape.Spec.Devices {
			if out[s.Node] == nil {
				out[s.Node] = map[string][]string{}
			}
			out[s.Node][s.Pool.Name] = append(out[s.Node][s.Pool.Name], device.Name)
		}
	}
	return out
}

// otherDriver reports a second driver of this driver's name on a node: its slices, by pool, or the GPU operator's
// label.
func (d Diagnosis) otherDriver(out *findings, node string, pools map[string][]string, core map[string]corev1.Node) {
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		devices := slices.Sorted(slices.Values(pools[pool]))
		text := strings.Join(devices[:min(len(devices), 3)], ", ")
		if more := len(devices) - 3; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		out.add(Problem, node, "another driver publishes the pool %s as driver %s, with %s. Claims for classes of "+
			"this driver can get them. %s",
			pool, d.Driver, text, keepOne)
	}
	if d.Driver == nvidiaDriver && len(d.GPUClusters) > 0 && core[node].Labels[deployLabel] == "true" {
		out.add(Warning, node, "the node has the label %s=true: the GPU operator deploys NVIDIA's DRA driver to it, "+
			"which has the name %s too. %s",
			deployLabel, d.Driver, keepOne)
	}
}

// operator reports the objects for which the GPU operator installs NVIDIA's DRA driver.
func (d Diagnosis) operator(out *findings) {
	if d.Driver == nvidiaDriver && len(d.GPUClusters) > 0 {
		out.add(Warning, "cluster", "for the GPUCluster %s, the GPU operator (release 26.7 and later) deploys "+
			"NVIDIA's DRA driver to the nodes with the label %s=true, which has the name %s too. %s",
			strings.Join(d.GPUClusters, ", "), deployLabel, d.Driver, keepOne)
	}
}
