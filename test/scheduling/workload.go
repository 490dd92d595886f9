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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	namespace = "default"
	unit      = "unit" // the request of every claim
)

// workload is a kind of pods, one claim each.
type workload struct {
	name string
	// request is nil for an extended resource, and for no device. more has further requests of the claim.
	request  *resourceapi.ExactDeviceRequest
	more     []*resourceapi.ExactDeviceRequest
	none     bool // it asks for no device
	together bool // its GPUs must have one nvlinkGroup
	// uses selects the devices that claims hold on a used node; each could serve so many pods, or is one of a group. Nodes
	// without a device that it needs serve no such pod. A nil needs is equal to uses.
	uses, needs func(resourceapi.Device) bool
	pods, per   int
	// A pod takes so many GPUs, or a part of one. instead is the workload that takes the pod's place in a cluster
	// without the devices.
	gpus    float64
	instead string
}

var workloads = []workload{
	{name: "whole", uses: isWhole, pods: 1, per: 1, request: request("gpu.nvidia.com", 1), gpus: 1},
	{name: "1g", uses: isSmallest, pods: 1, per: 1, request: request("mig-1g.10gb.nvidia.com", 1), gpus: 1. / 7, instead: "whole"},
	{name: "3g", uses: isLarger, pods: 1, per: 1, request: request("mig-3g.40gb.nvidia.com", 1), gpus: 1. / 2, instead: "whole"},
	{name: "share", uses: isShareable, pods: 7, per: 1, request: share("10Gi"), gpus: 1. / 7, instead: "whole"},
	{name: "group", uses: isWhole, needs: isGroup, pods: 1, per: 4, gpus: 4, instead: "four",
		request: request("nvlink.gpu.nvidia.com", 1, selectors("%s.gpuCount == 4")...)},
	{name: "four", uses: isWhole, pods: 1, per: 4, together: true, request: request("gpu.nvidia.com", 4), gpus: 4},
	{name: "extended", uses: isWhole, pods: 1, per: 1, gpus: 1},
	{name: "none", uses: isWhole, pods: 7, per: 1, none: true},
}

// misfits are pods that no node of eight GPUs satisfies: their requests fit alone, and not together.
var misfits = workload{name: "misfit", request: request("gpu.nvidia.com", 5),
	more: []*resourceapi.ExactDeviceRequest{request("mig-1g.10gb.nvidia.com", 22)}}

// workloadNamed returns a workload of the table.
func workloadNamed(name string) workload {
	return workloads[slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })]
}

// use is the part of the devices that claims hold before the pods come.
type use struct {
	name       string
	percentage int
}

var uses = []use{{"empty", 0}, {"half", 50}, {"95 %", 95}}

func request(class string, count int64, selectors ...resourceapi.DeviceSelector) *resourceapi.ExactDeviceRequest {
	return &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Selectors: selectors}
}

// share returns a request for a part of a GPU's memory. Without the selector, the scheduler could allocate an exclusive GPU.
func share(memory string) *resourceapi.ExactDeviceRequest {
	r := request("gpu.nvidia.com", 1, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: "device.allowMultipleAllocations"}})
	r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	return r
}

// held returns the number of devices that claims hold on a node, out of so many. Single devices are taken from all
// nodes alike. If a pod needs several, nodes are taken as a whole, or by halves.
func (w workload) held(u use, node, nodes, devices int) int {
	step := 1
	if w.per > 1 {
		if step = devices; u.percentage == 50 {
			step = w.per
		}
	}
	total := u.percentage * nodes * devices / 100 / step
	return (total*(node+1)/nodes - total*node/nodes) * step
}

// servedBy reports whether a node can serve the pods.
func (w workload) servedBy(published []*resourceapi.ResourceSlice) bool {
	needs := w.needs
	if needs == nil {
		needs = w.uses
	}
	return len(devicesOf(published, needs)) > 0
}

func (w workload) claim(name string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: unit, Exactly: w.request}}
	for i, r := range w.more {
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests,
			resourceapi.DeviceRequest{Name: fmt.Sprintf("%s-%d", unit, i), Exactly: r})
	}
	if w.together {
		group := resourceapi.FullyQualifiedName("gpu.nvidia.com/nvlinkGroup")
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &group}}
	}
	return claim
}

// pod uses the claim of the same name, or an extended resource.
func (w workload) pod(name string) *corev1.Pod {
	container := corev1.Container{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("16Mi")}, Limits: corev1.ResourceList{}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"cell": "yes"}}}
	switch {
	case w.none:
	case w.request == nil:
		container.Resources.Limits["nvidia.com/gpu"] = resource.MustParse("1")
	default:
		container.Resources.Claims = []corev1.ResourceClaim{{Name: unit}}
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: unit, ResourceClaimName: &name}}
	}
	pod.Spec.Containers = []corev1.Container{container}
	return pod
}

// taken returns the devices of each node that claims hold, and the number of devices that stay free in the cluster. Nodes
// that do not serve the pods do not count.
func (w workload) taken(u use, published [][]*resourceapi.ResourceSlice) (taken [][]resourceapi.Device, free int) {
	taken = make([][]resourceapi.Device, len(published))
	var serving []int
	for i := range published {
		if w.servedBy(published[i]) {
			taken[i] = devicesOf(published[i], w.uses)
			serving = append(serving, i)
		}
	}
	for k, i := range serving {
		n := w.held(u, k, len(serving), len(taken[i]))
		free += len(taken[i]) - n
		taken[i] = taken[i][:n]
	}
	return taken, free
}

// hold creates allocated claims of that many devices, as the scheduler would, and returns the number of devices that
// stay free in the cluster.
func (c *controlPlane) hold(ctx context.Context, w workload, u use, published [][]*resourceapi.ResourceSlice) (free int, err error) {
	taken, free := w.taken(u, published)
	return free, each(ctx, c.nodes, func(ctx context.Context, i int) error {
		// A claim has at most 32 devices.
		for k := 0; k < len(taken[i]); k += resourceapi.AllocationResultsMaxSize {
			part := taken[i][k:min(len(taken[i]), k+resourceapi.AllocationResultsMaxSize)]
			if err := c.holdOnNode(ctx, nodeName(i), fmt.Sprintf("held-%d-%d", i, k), published[i][0].Spec.Pool.Name, part); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *controlPlane) holdOnNode(ctx context.Context, node, name, pool string, devices []resourceapi.Device) error {
	claim := workload{request: request("gpu.nvidia.com", int64(len(devices)))}.claim(name)
	var results []resourceapi.DeviceRequestAllocationResult
	for _, d := range devices {
		r := resourceapi.DeviceRequestAllocationResult{Request: unit, Driver: "gpu.nvidia.com", Pool: pool, Device: d.Name}
		if d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations {
			id := uuid.NewUUID()
			r.ShareID, r.ConsumedCapacity = &id, map[resourceapi.QualifiedName]resource.Quantity{}
			for name, capacity := range d.Capacity {
				r.ConsumedCapacity[name] = capacity.Value
				if p := capacity.RequestPolicy; p != nil && p.Default != nil {
					r.ConsumedCapacity[name] = *p.Default
				}
			}
		}
		results = append(results, r)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}}},
	}
	return c.createAllocated(ctx, claim)
}

// createAllocated creates a claim with its status.
func (c *controlPlane) createAllocated(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	claims := c.client.ResourceV1().ResourceClaims(namespace)
	created, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	created.Status = claim.Status
	_, err = claims.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	return err
}

var withoutFinalizers = []byte(`{"metadata":{"finalizers":null}}`)

// clean deletes all pods and claims. It removes the `finalizers` of the scheduler, as a controller would.
func (c *controlPlane) clean(ctx context.Context) error {
	now := int64(0)
	if err := c.client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		return err
	}
	claims := c.client.ResourceV1().ResourceClaims(namespace)
	return c.until(ctx, "all claims are deleted", func() error {
		if err := claims.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
		left, err := claims.List(ctx, metav1.ListOptions{})
		if err != nil || len(left.Items) == 0 {
			return err
		}
		err = each(ctx, len(left.Items), func(ctx context.Context, i int) error {
			_, err := claims.Patch(ctx, left.Items[i].Name, types.MergePatchType, withoutFinalizers, metav1.PatchOptions{})
			return ignoreNotFound(err)
		})
		if err != nil {
			return err
		}
		return fmt.Errorf("%d claims are left", len(left.Items))
	})
}
