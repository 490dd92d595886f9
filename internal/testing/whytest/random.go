// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package whytest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FleetLabel is the label of a random Fleet's nodes. Its value contains the prefix.
const FleetLabel = "example.com/fleet"

// Random returns a Fleet of a few nodes with allocated claims and tainted devices. All names begin with the prefix;
// apart from it, an equal source makes an equal Fleet.
func Random(r *rand.Rand, prefix string) (*Fleet, error) {
	f := New()
	for i := range 2 + r.IntN(3) {
		makes := []string{"hgx-h100", "hgx-h100", "a30", "l40s-4"}
		n, err := f.Add(fmt.Sprintf("%sn%d", prefix, i), makes[r.IntN(len(makes))], 1+r.IntN(3))
		if err != nil {
			return nil, err
		}
		n.Labels[FleetLabel] = "of-" + prefix + "x"
	}
	for i := range r.IntN(14) {
		f.Start(RandomClaim(r, fmt.Sprintf("%sheld-%d", prefix, i)), f.Nodes[r.IntN(len(f.Nodes))].Name)
	}
	taint := resourceapi.DeviceTaint{Key: "example.com/repair", Value: "yes",
		Effect: resourceapi.DeviceTaintEffectNoSchedule}
	rule := func(s *resourceapi.ResourceSlice, device *string) {
		f.Rules = append(f.Rules, &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%srepair-%d", prefix, len(f.Rules))},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &s.Spec.Pool.Name, Device: device}, Taint: taint,
			},
		})
	}
	maintenance := r.IntN(6) == 0
	for _, s := range f.Slices {
		if maintenance && len(s.Spec.Devices) > 0 {
			rule(s, nil)
		}
	}
	for range r.IntN(4) {
		s := f.Slices[r.IntN(len(f.Slices))]
		if len(s.Spec.Devices) == 0 || maintenance {
			continue
		}
		d := &s.Spec.Devices[r.IntN(len(s.Spec.Devices))]
		switch r.IntN(3) {
		case 0:
			rule(s, nil) // A rule without a device taints the whole pool.
		case 1:
			rule(s, &d.Name)
		case 2:
			if len(d.Taints) == 0 { // Two taints of one key and effect are invalid.
				d.Taints = append(d.Taints, taint)
			}
		}
	}
	return f, nil
}

// RandomClaim returns a claim with one or two requests, of which some no node can satisfy.
func RandomClaim(r *rand.Rand, name string) *resourceapi.ResourceClaim {
	classes := []string{GPUs, GPUs, Small, Medium, AnyMIG}
	c := Claim(name, classes[r.IntN(len(classes))], 1+int64(r.IntN(3)))
	q := c.Spec.Devices.Requests[0].Exactly
	if q.DeviceClassName == GPUs && r.IntN(2) == 0 {
		q.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": resource.MustParse([]string{"10Gi", "30Gi", "60Gi"}[r.IntN(3)]),
		}}
	}
	if r.IntN(4) == 0 {
		q.Selectors = Selectors(`device.attributes["gpu.nvidia.com"].productName.contains("H100")`)
	}
	if r.IntN(6) == 0 { // Boards of one make differ in it.
		q.Selectors = append(q.Selectors, Selectors(`device.attributes["gpu.nvidia.com"].parentUUID.endsWith("0")`)[0])
	}
	if r.IntN(4) == 0 {
		name := resourceapi.FullyQualifiedName([]string{"gpu.nvidia.com/parentUUID", "resource.kubernetes.io/pcieRoot",
			"gpu.nvidia.com/productName"}[r.IntN(3)])
		c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &name}}
	}
	if r.IntN(8) == 0 {
		q.AllocationMode, q.Count = resourceapi.DeviceAllocationModeAll, 0
	}
	switch r.IntN(10) {
	case 0, 1:
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests,
			resourceapi.DeviceRequest{Name: "more", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: Small, AllocationMode: resourceapi.DeviceAllocationModeExactCount,
				Count: 1 + int64(r.IntN(2)),
			}})
	case 2:
		first := subRequest("whole", GPUs, 1+int64(r.IntN(2)))
		second := subRequest("part", []string{Small, Medium}[r.IntN(2)], 1+int64(r.IntN(2)))
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{
			Name: "either", FirstAvailable: []resourceapi.DeviceSubRequest{first, second},
		})
	}
	return c
}

func subRequest(name, class string, count int64) resourceapi.DeviceSubRequest {
	return resourceapi.DeviceSubRequest{
		Name: name, DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}
}

// RandomPod returns a pod for the nodes of a Fleet, and its claims: mostly one claim, or two, or containers with
// nvidia.com/gpu.
func RandomPod(r *rand.Rand, prefix string) (*corev1.Pod, []*resourceapi.ResourceClaim) {
	var claims []*resourceapi.ResourceClaim
	kind := r.IntN(8)
	if kind != 0 {
		claims = append(claims, RandomClaim(r, prefix+"asked"))
	}
	if kind == 1 {
		claims = append(claims, RandomClaim(r, prefix+"also"))
	}
	p := Pod(prefix+"asked", claims...)
	p.Spec.NodeSelector = map[string]string{FleetLabel: "of-" + prefix + "x"}
	for i := range 1 + r.IntN(2) {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "none"}
		if kind == 0 {
			c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(1+int64(r.IntN(2)),
				resource.DecimalSI)}
		}
		for _, claim := range claims {
			c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claim.Name})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p, claims
}
