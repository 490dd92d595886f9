// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire has the words that the driver's programs, and others, read on Kubernetes' objects: keys of taints,
// annotations, names of pools and attributes.
package wire

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/gpu"
)

// Keys of taints do not contain the driver's name, because classes and claims repeat them in tolerations.
const (
	// MonitorTaint is on every monitor device, so that only claims that tolerate it get one.
	MonitorTaint = "gpu.nvidia.com/monitor"
	// UnhealthyTaint is on a published device that is unavailable to new claims. Its value is the state.
	UnhealthyTaint = "gpu.nvidia.com/unhealthy"
	// UnknownVersion is the value of a version that is not known.
	UnknownVersion = "0.0.0"
	// MIGLayoutAttribute is the attribute of a whole GPU with the name of its MIG layout.
	MIGLayoutAttribute resourceapi.QualifiedName = "migLayout"
)

// OfNow reports whether a taint is one that a device has on its node for a time: for a fault, a cordon or a
// reservation.
func OfNow(t resourceapi.DeviceTaint) bool {
	return t.Key == UnhealthyTaint || t.Key == CordonTaint || t.Key == ReservedTaint
}

// PoolName returns the name of a node's pool of devices for use.
func PoolName(node string) string { return node + "/gpu" }

// MonitorPoolName returns the name of a node's pool of monitor devices. Programs that divide by the devices of a pool
// do not count them.
func MonitorPoolName(node string) string { return node + "/monitor" }

// NodeOf returns the node of a pool by the pool's name.
func NodeOf(pool string) string {
	node, _, _ := strings.Cut(pool, "/")
	return node
}

// PoolOf returns the name of the pool of a slice with these devices.
func PoolOf(node string, devices []resourceapi.Device) string {
	if len(devices) > 0 && ptr.Deref(devices[0].Attributes["type"].StringValue, "") == string(gpu.KindMonitor) {
		return MonitorPoolName(node)
	}
	return PoolName(node)
}
