// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/node/resourceslices/slicetest"
	"gpu-dra-driver/pkg/show/why"
	"gpu-dra-driver/pkg/show/why/whytest"
)

// BenchmarkAsk explains a claim for eight GPUs in a cluster of 5,000 nodes of eight H100. On each node claims hold one
// of twenty mixtures of GPUs and partitions.
func BenchmarkAsk(b *testing.B) {
	const nodes, mixtures = 5000, 20
	e := newEnv(b)
	e.node(b, "n0", "hgx-h100", 8)
	template := e.Slices
	node := e.Nodes[0]
	var held [mixtures][]resourceapi.DeviceRequestAllocationResult
	for i := range mixtures {
		e.Claims = nil
		for j := range 1 + i%7 {
			results, err := whytest.Schedule(e.Fleet, node, []*resourceapi.ResourceClaim{claim("c", []string{gpus, small, medium}[(i+j)%3], 1+int64(i/7))})
			if err != nil {
				b.Fatal(err)
			}
			if len(results) == 0 {
				continue // The node is full.
			}
			c := claim(fmt.Sprint(j), gpus, 1)
			c.Status.Allocation = &results[0]
			e.Claims = append(e.Claims, c)
			held[i] = append(held[i], results[0].Devices.Results...)
		}
	}
	c := why.Cluster{Classes: e.Classes}
	var slices []*resourceapi.ResourceSlice
	for n := range nodes {
		name := fmt.Sprintf("n%04d", n)
		c.Nodes = append(c.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for _, s := range template {
			one := *s // The devices are the same in memory.
			one.Name, one.Spec.NodeName, one.Spec.Pool.Name = name+s.Name[2:], &name, name+s.Spec.Pool.Name[2:]
			slices = append(slices, &one)
		}
		for i, r := range held[n%mixtures] {
			r.Pool = name + r.Pool[2:]
			one := claim(fmt.Sprintf("%s-%d", name, i), gpus, 1)
			one.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}}}
			c.Claims = append(c.Claims, one)
		}
	}
	c.Slices = packed(b, slices)
	before := processorTime(b)
	for b.Loop() {
		answer := why.Ask(context.Background(), &c, why.Subject{Claim: claim("asked", gpus, 8)}, why.Options{Driver: slicetest.Driver, Limit: time.Minute})
		if answer.Result != why.Waits || len(answer.Cures) == 0 {
			b.Fatal(answer)
		}
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
}

// processorTime returns the processor time of the process, because other programs make the time of a clock long.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
