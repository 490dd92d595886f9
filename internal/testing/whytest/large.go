// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package whytest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/why"
)

// Large returns a cluster of nodes of eight H100. On each node claims hold one of twenty mixtures of GPUs and
// partitions.
func Large(nodes int) (*why.Cluster, error) {
	const mixtureCount = 20
	f := New()
	node, err := f.Add("n0", "hgx-h100", 8)
	if err != nil {
		return nil, err
	}
	template := f.Slices
	var held [mixtureCount][]resourceapi.DeviceRequestAllocationResult
	for i := range mixtureCount {
		f.Claims = nil
		for j := range 1 + i%7 {
			results, err := Schedule(f, node,
				[]*resourceapi.ResourceClaim{Claim("c", []string{GPUs, Small, Medium}[(i+j)%3], 1+int64(i/7))})
			if err != nil {
				return nil, err
			}
			if len(results) == 0 {
				continue // The node is full.
			}
			c := Claim(fmt.Sprint(j), GPUs, 1)
			c.Status.Allocation = &results[0]
			f.Claims = append(f.Claims, c)
			held[i] = append(held[i], results[0].Devices.Results...)
		}
	}
	c := &why.Cluster{Classes: f.Classes}
	var slices []*resourceapi.ResourceSlice
	for n := range nodes {
		name := fmt.Sprintf("n%04d", n)
		c.Nodes = append(c.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for _, s := range template {
			one := *s // The devices are the same in memory.
			one.Name, one.Spec.NodeName, one.Spec.Pool.Name = name+s.Name[2:], &name, name+s.Spec.Pool.Name[2:]
			slices = append(slices, &one)
		}
		for i, r := range held[n%mixtureCount] {
			r.Pool = name + r.Pool[2:]
			one := Claim(fmt.Sprintf("%s-%d", name, i), GPUs, 1)
			one.Status.Allocation = &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}},
			}
			c.Claims = append(c.Claims, one)
		}
	}
	c.Slices, err = Pack(slices)
	return c, err
}
