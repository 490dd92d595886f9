// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

const (
	board      = "hgx-h100" // the model of all nodes
	gpusOfNode = 8
)

// devices is a way to publish a node's GPUs.
type devices struct {
	file       string // the node's settings
	plain      bool   // eight devices without counters and shares
	noMonitors bool   // as with the chart value kubeletPlugin.monitors.enabled: false
	noSample   bool   // another node publishes a placement of each profile that no object asks for
	serving    int    // of the last GPUs have the partitions and shares of the mixed cluster
}

// setting is a way to publish the GPUs of a cluster.
type setting struct {
	name string
	devices
	some      []part   // of the nodes, with other devices
	workloads []string // that these devices can serve
}

// part is a part of the nodes: so many times the percentage of the flag -cut.
type part struct {
	times int
	devices
}

// onlyGPUs are eight exclusive GPUs as the driver publishes them, and nothing else.
var onlyGPUs = devices{file: "publish: [{profiles: None, groups: None, shareable: None}]", noMonitors: true}

var (
	// cut are the partitions and shares that the mixed cluster's pods ask for, and linked the groups. A group needs half of a
	// node to be free, so more nodes must have them.
	cut    = devices{file: "publish: [{profiles: [1g.10gb, 3g.40gb], groups: None, shareable: GPUs}]"}
	linked = devices{file: "publish: [{profiles: None, shareable: None}]", noMonitors: true}
	// served are those partitions and shares on two GPUs of a node, as the controller has them. Free ones follow while claims
	// take these.
	served = devices{file: "publish: [{profiles: Auto, groups: None, monitors: Auto, shareable: Auto}]", noSample: true, serving: 2}
)

var settings = []setting{
	{name: "plain", devices: devices{plain: true}, workloads: []string{"whole", "four", "extended", "mixed"}},
	{name: "all", workloads: []string{"whole", "1g", "3g", "share", "group", "four", "extended", "none"}},
	{name: "1g", devices: devices{file: "publish: [{profiles: [1g.10gb], shareable: None}]"}, workloads: []string{"whole", "1g"}},
	{name: "auto", devices: devices{file: "publish: [{profiles: Auto, groups: Auto, monitors: Auto, shareable: Auto}]"}, workloads: []string{"whole", "four", "extended"}},
	{name: "auto-1g", devices: devices{file: "publish: [{profiles: [Auto, 1g.10gb], groups: Auto, monitors: Auto, shareable: None}]"}, workloads: []string{"whole", "1g"}},
	{name: "whole", devices: devices{file: "publish: [{profiles: None, shareable: None}]"}, workloads: []string{"whole", "group", "four", "extended"}},
	{name: "gpus", devices: onlyGPUs, workloads: []string{"whole", "four", "extended"}},
	{name: "some-all", devices: onlyGPUs, some: []part{{times: 1}}, workloads: []string{"whole", "1g", "3g", "share", "group", "four", "extended"}},
	{name: "some-1g", devices: onlyGPUs, some: []part{{1, devices{file: "publish: [{profiles: [1g.10gb], groups: None, shareable: GPUs}]"}}},
		workloads: []string{"whole", "1g", "share", "four", "extended"}},
	{name: "auto-mixed", devices: devices{file: "publish: [{profiles: [Auto, 1g.10gb, 3g.40gb]}]"},
		workloads: []string{"whole", "1g", "3g", "share", "group", "four", "extended", "mixed"}},
	{name: "some-cut", devices: onlyGPUs, some: []part{{1, cut}}, workloads: []string{"whole", "1g", "3g", "share", "four", "extended", "mixed"}},
	{name: "some-mixed", devices: onlyGPUs, some: []part{{1, cut}, {3, linked}},
		workloads: []string{"whole", "1g", "3g", "share", "group", "four", "extended", "mixed"}},
	{name: "some-gpus", devices: onlyGPUs, some: []part{{1, served}}, workloads: []string{"whole", "1g", "3g", "share", "four", "extended", "mixed"}},
}

// of returns the devices of a node. Each part is spread over the cluster.
func (s setting) of(node, percentage int) devices {
	times := 0
	for _, p := range s.some {
		times += p.times
	}
	all := min(100, times*percentage)
	if before := node * all / 100; (node+1)*all/100 > before {
		at := before % times
		for _, p := range s.some {
			if at -= p.times; at < 0 {
				return p.devices
			}
		}
	}
	d := s.devices
	d.noSample = node > 0 // The first node is the sample node.
	return d
}

// serving returns the workload of a pod whose user wants a kind of devices.
func (s setting) serving(kind string) workload {
	w := workloadNamed(kind)
	if !slices.Contains(s.workloads, kind) {
		w = workloadNamed(w.instead)
	}
	return w
}

func nodeName(node int) string { return fmt.Sprintf("node-%03d", node) }

// slicesOf returns the ResourceSlices of a node.
func (d devices) slicesOf(node string, scanned gpu.Snapshot) ([]*resourceapi.ResourceSlice, error) {
	parsed, _, err := sharing.Parse([]byte(d.file))
	if err != nil {
		return nil, err
	}
	published := slicetest.Slices(scanned, node, parsed, func(o *resourceslices.Options) {
		demand := sharingtest.NoDemand{Elsewhere: d.noSample, Profiles: []string{"1g.10gb", "3g.40gb"}}
		for _, g := range scanned.GPUs[len(scanned.GPUs)-d.serving:] {
			demand.Serving = append(demand.Serving, g.PCIAddress)
		}
		o.Sharing = sharing.Node{Name: node, Settings: parsed, MPS: true, Demand: demand}
	})
	if d.noMonitors {
		published = slices.DeleteFunc(published, func(slice *resourceapi.ResourceSlice) bool {
			return slice.Spec.Pool.Name == wire.MonitorPoolName(node)
		})
	}
	if !d.plain {
		return published, nil
	}
	slice := published[0].DeepCopy()
	slice.Spec.Devices, slice.Spec.SharedCounters, slice.Spec.Pool.ResourceSliceCount = devicesOf(published, isWhole), nil, 1
	for i := range slice.Spec.Devices {
		whole := &slice.Spec.Devices[i]
		whole.ConsumesCounters, whole.AllowMultipleAllocations = nil, nil
		for name, capacity := range whole.Capacity {
			whole.Capacity[name] = resourceapi.DeviceCapacity{Value: capacity.Value}
		}
	}
	return []*resourceapi.ResourceSlice{slice}, nil
}

// devicesOf returns copies of the devices that match, in the scheduler's order.
func devicesOf(published []*resourceapi.ResourceSlice, match func(resourceapi.Device) bool) []resourceapi.Device {
	var out []resourceapi.Device
	for _, slice := range published {
		for _, d := range slice.Spec.Devices {
			if match(d) {
				out = append(out, *d.DeepCopy())
			}
		}
	}
	return out
}

func attribute(d resourceapi.Device, name resourceapi.QualifiedName) string {
	if v := d.Attributes[name].StringValue; v != nil {
		return *v
	}
	return ""
}

func isWhole(d resourceapi.Device) bool    { return attribute(d, "type") == "gpu" }
func isGroup(d resourceapi.Device) bool    { return attribute(d, "type") == "nvlink-group" }
func isSmallest(d resourceapi.Device) bool { return attribute(d, "profile") == "1g.10gb" }
func isLarger(d resourceapi.Device) bool   { return attribute(d, "profile") == "3g.40gb" }
func isShareable(d resourceapi.Device) bool {
	return isWhole(d) && d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
}

// each calls a function for 0 to n-1, eight at a time.
func each(ctx context.Context, n int, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	workqueue.ParallelizeUntil(ctx, 8, n, func(i int) {
		if err := call(ctx, i); err != nil {
			cancel(err)
		}
	})
	return context.Cause(ctx)
}

// classes are the chart's.
func classes() (out []*resourceapi.DeviceClass) {
	name := "nvidia.com/gpu"
	for class, spec := range map[string]resourceapi.DeviceClassSpec{
		"gpu.nvidia.com":         {ExtendedResourceName: &name, Selectors: selectors("%s.type == 'gpu'")},
		"mig-1g.10gb.nvidia.com": {Selectors: selectors("%[1]s.type == 'mig' && %[1]s.profile == '1g.10gb'")},
		"mig-3g.40gb.nvidia.com": {Selectors: selectors("%[1]s.type == 'mig' && %[1]s.profile == '3g.40gb'")},
		"nvlink.gpu.nvidia.com":  {Selectors: selectors("%s.type == 'nvlink-group'")},
	} {
		out = append(out, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: spec})
	}
	return out
}

// createNodes creates ready nodes, and the classes.
func (c *controlPlane) createNodes(ctx context.Context) error {
	for _, class := range classes() {
		if _, err := c.client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	room := corev1.ResourceList{"cpu": resource.MustParse("192"), "memory": resource.MustParse("2Ti"), "pods": resource.MustParse("250")}
	return each(ctx, c.nodes, func(ctx context.Context, i int) error {
		_, err := c.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{"kubernetes.io/hostname": nodeName(i)}},
			Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
			}},
		}, metav1.CreateOptions{})
		return err
	})
}

// selectors returns the driver's devices for which an expression about their attributes is true.
func selectors(expression string) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: "device.driver == 'gpu.nvidia.com' && " + fmt.Sprintf(expression, "device.attributes['gpu.nvidia.com']"),
	}}}
}

// publish replaces all slices by those of a setting, and returns the slices of each node.
func (c *controlPlane) publish(ctx context.Context, s setting) ([][]*resourceapi.ResourceSlice, error) {
	slices := c.client.ResourceV1().ResourceSlices()
	if err := slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return nil, err
	}
	nodes := make([][]*resourceapi.ResourceSlice, c.nodes)
	return nodes, each(ctx, c.nodes, func(ctx context.Context, i int) error {
		scanned, err := slicetest.Scan(board, nodeName(i), 0)
		if err != nil {
			return err
		}
		if nodes[i], err = s.of(i, c.cut).slicesOf(nodeName(i), scanned); err != nil {
			return err
		}
		for _, slice := range nodes[i] {
			if _, err := slices.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}
