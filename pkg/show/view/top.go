// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// NodeUse is the measured use of a node's GPUs. A nil value was not measured on any of them.
type NodeUse struct {
	Node string `json:"node"`
	// GPUs is the number of GPUs in the metrics.
	GPUs int `json:"gpus"`
	// Utilization is the mean of the GPUs that measure it, 0 to 1.
	Utilization      *float64 `json:"utilization,omitempty"`
	MemoryUsedBytes  *float64 `json:"memoryUsedBytes,omitempty"`
	MemoryTotalBytes *float64 `json:"memoryTotalBytes,omitempty"`
	PowerWatts       *float64 `json:"powerWatts,omitempty"`
	// TemperatureCelsius is the hottest GPU's temperature.
	TemperatureCelsius *float64 `json:"temperatureCelsius,omitempty"`
}

// ClaimUse is the measured use of the devices of a claim, or of all claims of a pod. A nil value was not measured.
type ClaimUse struct {
	Namespace string `json:"namespace"`
	// Name is the name of the claim or of the pod.
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Claims are the pod's claims, and Pods the claim's pods.
	Claims  []string `json:"claims,omitempty"`
	Pods    []string `json:"pods,omitempty"`
	Devices []string `json:"devices"`
	// Utilization is the mean of the devices that measure it, 0 to 1.
	Utilization        *float64 `json:"utilization,omitempty"`
	MemoryUsedBytes    *float64 `json:"memoryUsedBytes,omitempty"`
	MemoryGrantedBytes *float64 `json:"memoryGrantedBytes,omitempty"`
}

// The plugin's metrics about use.
const (
	devicePrefix       = "gpu_dra_device_"
	claimDevices       = "gpu_dra_claim_device_info"
	claimUtilization   = "gpu_dra_claim_utilization_ratio"
	claimMemoryUsed    = "gpu_dra_claim_memory_used_bytes"
	claimMemoryGranted = "gpu_dra_claim_memory_granted_bytes"
)

// claimFigures are the metrics with a sample for each pod of a claim. Other metrics of claims have other labels.
var claimFigures = []string{claimUtilization, claimMemoryUsed, claimMemoryGranted}

// mean collects values. Values that are not numbers, or that no device can have, are not measured.
type mean struct {
	sum, largest float64
	n            int
}

func (m *mean) add(v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return
	}
	m.sum, m.largest, m.n = m.sum+v, max(m.largest, v), m.n+1
}

func (m *mean) value(v float64) *float64 {
	if m == nil || m.n == 0 {
		return nil
	}
	return &v
}

func (m *mean) total() *float64 { return m.value(m.sum) }
func (m *mean) most() *float64  { return m.value(m.largest) }
func (m *mean) mean() *float64  { return m.value(m.sum / float64(max(m.n, 1))) }

// Larger orders values from the largest. A value that was not measured comes last.
func Larger(a, b *float64) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

// TopNodes returns the use of each node, sorted by name. A node without metrics has no values.
func TopNodes(byNode map[string]Samples) (out []NodeUse) {
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		samples := byNode[node]
		boards := map[string]bool{}
		read := func(metric string) *mean {
			m := &mean{}
			for _, s := range samples[devicePrefix+metric] {
				// A partition's samples are part of its GPU's.
				if s.Labels["type"] == "gpu" {
					boards[s.Labels["uuid"]] = true
					m.add(s.Value)
				}
			}
			return m
		}
		use := NodeUse{
			Node: node, Utilization: read("utilization_ratio").mean(), PowerWatts: read("power_watts").total(),
			MemoryUsedBytes: read("memory_used_bytes").total(), MemoryTotalBytes: read("memory_total_bytes").total(),
			TemperatureCelsius: read("temperature_celsius").most(),
		}
		use.GPUs = len(boards)
		out = append(out, use)
	}
	return out
}

// GPUUse is the measured use of a GPU, or of a claim's part of it. A nil value was not measured.
type GPUUse struct {
	// Utilization is 0 to 1.
	Utilization      *float64
	MemoryUsedBytes  *float64
	MemoryTotalBytes *float64
}

// GPUName names a GPU of a cluster, by its node and the name of the whole GPU's device.
type GPUName struct{ Node, Name string }

// TopGPUs returns the use of each GPU.
func TopGPUs(byNode map[string]Samples) map[GPUName]GPUUse {
	out := map[GPUName]GPUUse{}
	for node, samples := range byNode {
		read := func(metric string, set func(*GPUUse, *float64)) {
			for _, s := range samples[devicePrefix+metric] {
				if s.Labels["type"] != "gpu" {
					continue
				}
				m := &mean{}
				m.add(s.Value)
				name := GPUName{node, s.Labels["device"]}
				use := out[name]
				set(&use, m.total())
				out[name] = use
			}
		}
		read("utilization_ratio", func(u *GPUUse, v *float64) { u.Utilization = v })
		read("memory_used_bytes", func(u *GPUUse, v *float64) { u.MemoryUsedBytes = v })
		read("memory_total_bytes", func(u *GPUUse, v *float64) { u.MemoryTotalBytes = v })
	}
	return out
}

// PartName names what a claim has of a device: all, or a share.
type PartName struct {
	Node, Device string
	Claim        ClaimRef
}

// TopParts returns the use of each claim's part of each device. Its total is the memory that the claim was granted.
func TopParts(byNode map[string]Samples) map[PartName]GPUUse {
	out := map[PartName]GPUUse{}
	for node, samples := range byNode {
		read := func(metric string, set func(*GPUUse, *float64)) {
			for _, s := range samples[metric] {
				m := &mean{}
				m.add(s.Value)
				name := PartName{node, s.Labels["device"], ClaimRef{s.Labels["namespace"], s.Labels["claim"]}}
				use := out[name]
				set(&use, m.total())
				out[name] = use
			}
		}
		read(claimUtilization, func(u *GPUUse, v *float64) { u.Utilization = v })
		read(claimMemoryUsed, func(u *GPUUse, v *float64) { u.MemoryUsedBytes = v })
		read(claimMemoryGranted, func(u *GPUUse, v *float64) { u.MemoryTotalBytes = v })
	}
	return out
}

// grouping collects the series of one claim or pod.
type grouping struct {
	use ClaimUse
	// values has the series by metric, and by request, device and GPU. The pods of a claim have equal series, of which
	// one counts.
	values map[string]map[[4]string]float64
}

// TopClaims returns the use of each claim, sorted by namespace and name.
func TopClaims(byNode map[string]Samples) []ClaimUse {
	return top(byNode, func(info Sample) string { return info.Labels["claim"] })
}

// TopPods returns the use of each pod, sorted by namespace and name.
func TopPods(byNode map[string]Samples) []ClaimUse {
	return top(byNode, func(info Sample) string { return info.Labels["pod"] })
}

func top(byNode map[string]Samples, name func(Sample) string) (out []ClaimUse) {
	found := map[ClaimRef]*grouping{}
	group := func(node string, s Sample, namespace string) *grouping {
		key := ClaimRef{namespace, name(s)}
		if key.Name == "" {
			return nil // No container of the claim has started.
		}
		g := found[key]
		if g == nil {
			g = &grouping{use: ClaimUse{Namespace: key.Namespace, Name: key.Name, Node: node},
				values: map[string]map[[4]string]float64{}}
			found[key] = g
		}
		add(&g.use.Claims, s.Labels["claim"])
		add(&g.use.Pods, s.Labels["pod"])
		add(&g.use.Devices, s.Labels["device"])
		return g
	}
	for node, samples := range byNode {
		for _, s := range samples[claimDevices] {
			if s.Labels["type"] != "monitor" { // Monitor devices use nothing.
				group(node, s, s.Labels["claim_namespace"])
			}
		}
		for _, metric := range claimFigures {
			for _, s := range samples[metric] {
				g := group(node, s, s.Labels["namespace"])
				if g == nil {
					continue
				}
				if g.values[metric] == nil {
					g.values[metric] = map[[4]string]float64{}
				}
				key := [4]string{s.Labels["claim"], s.Labels["request"], s.Labels["device"], s.Labels["uuid"]}
				g.values[metric][key] = max(g.values[metric][key], s.Value)
			}
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(found), ClaimRef.compare) {
		g := found[key]
		read := func(metric string) *mean {
			m := &mean{}
			for _, v := range g.values[metric] {
				m.add(v)
			}
			return m
		}
		g.use.Utilization = read(claimUtilization).mean()
		g.use.MemoryUsedBytes, g.use.MemoryGrantedBytes = read(claimMemoryUsed).total(),
			read(claimMemoryGranted).total()
		out = append(out, g.use)
	}
	return out
}

// add inserts a value into a sorted list without repetitions.
func add(list *[]string, value string) {
	at, known := slices.BinarySearch(*list, value)
	if value != "" && !known {
		*list = slices.Insert(*list, at, value)
	}
}
