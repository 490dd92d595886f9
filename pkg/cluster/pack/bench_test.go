// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
)

// large returns a cluster of nodes of eight H100. Each node has one of 40 random states, in which most GPUs are in use and
// no group of four is free.
func large(b *testing.B, nodes int) *pack.Cluster {
	b.Helper()
	type template struct {
		slices []*resourceapi.ResourceSlice
		claims []*resourceapi.ResourceClaim
		pods   []*corev1.Pod
	}
	var templates []template
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 500))
		e := newEnv(b)
		e.node("t", "hgx-h100", 8)
		for i := range 14 {
			class := []string{gpus, small, small, medium, medium, gpus}[r.IntN(6)]
			c := whytest.Claim(fmt.Sprintf("p%d", i), class, 1)
			if class == gpus && r.IntN(2) == 0 {
				c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("24Gi")}}
			}
			e.scattered(r, c, "t")
		}
		for i := range 2 { // Both halves are in use.
			e.scattered(rand.New(rand.NewPCG(uint64(i), 1)), whytest.Claim(fmt.Sprintf("q%d", i), small, 1), "t")
		}
		templates = append(templates, template{e.Slices, e.Claims, e.pods})
	}
	c := &pack.Cluster{Cluster: why.Cluster{States: read.States{read.Pods: nil}}}
	c.Classes = whytest.New().Classes
	var slices []*resourceapi.ResourceSlice
	for n := range nodes {
		name, t := fmt.Sprintf("n%04d", n), templates[n%len(templates)]
		c.Nodes = append(c.Nodes, &corev1.Node{})
		c.Nodes[n].Name = name
		c.Nodes[n].Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("32"), "pods": resource.MustParse("110")}
		for _, s := range t.slices {
			one := *s // The devices are the same in memory.
			one.Name, one.Spec.NodeName, one.Spec.Pool.Name = name+s.Name[1:], &name, name+s.Spec.Pool.Name[1:]
			slices = append(slices, &one)
		}
		for i, was := range t.claims {
			claim, pod := was.DeepCopy(), t.pods[i].DeepCopy()
			claim.Name, claim.UID = name+"-"+claim.Name, types.UID(name+"-"+claim.Name)
			for j := range claim.Status.Allocation.Devices.Results {
				r := &claim.Status.Allocation.Devices.Results[j]
				r.Pool = name + r.Pool[1:]
			}
			pod.Name, pod.UID, pod.Spec.NodeName = claim.Name, claim.UID, name
			pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}
			claim.Status.ReservedFor[0].Name, claim.Status.ReservedFor[0].UID = pod.Name, pod.UID
			c.Claims, c.Pods = append(c.Claims, claim), append(c.Pods, pod)
		}
	}
	packed, err := whytest.Pack(slices)
	if err != nil {
		b.Fatal(err)
	}
	c.Slices = packed
	return c
}

// BenchmarkMake500 plans for a group of four in a cluster of 500 nodes of eight H100.
func BenchmarkMake500(b *testing.B) {
	c := large(b, 500)
	w, err := pack.ParseGoal(slicetest.Driver, "nvlink-4")
	if err != nil {
		b.Fatal(err)
	}
	before := processorTime(b)
	defer func() { b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op") }()
	for b.Loop() {
		plan := pack.Make(context.Background(), c, w, pack.Options{Driver: slicetest.Driver, Limit: time.Minute})
		if plan.Result != pack.Moves {
			b.Fatal(plan)
		}
		b.ReportMetric(float64(len(plan.Moves)), "moves")
	}
}

// BenchmarkEmpty500 plans to empty one of the nodes.
func BenchmarkEmpty500(b *testing.B) {
	c := large(b, 500)
	before := processorTime(b)
	defer func() { b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op") }()
	for b.Loop() {
		plan := pack.Empty(context.Background(), c, "n0000", pack.Options{Driver: slicetest.Driver, Limit: time.Minute})
		b.ReportMetric(float64(len(plan.Moves)), "moves")
	}
}

// processorTime returns the processor time of the process, because other programs make the time of a clock long.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
