// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podevents

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/whytest"
)

// BenchmarkKeeper explains 2,000 waiting pods of twenty kinds in a cluster of 5,000 nodes. It reports the processor time of
// one answer, and of a scan of all pods. all-answers-s is the time until each kind has an answer, with the pauses that keep
// the work below a twentieth of a processor.
func BenchmarkKeeper(b *testing.B) {
	const pods, kinds = 2000, 20
	large, err := whytest.Large(5000)
	if err != nil {
		b.Fatal(err)
	}
	e := newEnv(b, 1)
	e.Cluster = *large
	k := e.keeper(Options{})
	e.packed = large.Slices
	for _, n := range large.Nodes {
		n.Labels = map[string]string{"kubernetes.io/hostname": n.Name}
		for i := range 60 { // As on nodes with GPUs and feature discovery.
			n.Labels[fmt.Sprintf("feature.node.kubernetes.io/of-%s-%d", n.Name, i)] = fmt.Sprintf("%s-%d", n.Name, i)
		}
	}
	old := metav1.NewTime(time.Now().Add(-time.Hour))
	for i := range pods {
		c := whytest.Claim(fmt.Sprintf("p-%d-gpu", i), whytest.GPUs, 8)
		c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *resource.NewQuantity(int64(60+i%kinds)<<30, resource.BinarySI),
		}}
		p := whytest.Pod(fmt.Sprint("p-", i))
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: p.Name, UID: p.UID, Controller: new(true)}}
		p.CreationTimestamp = old
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("t")}}
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &c.Name}}
		e.Claims = append(e.Claims, c)
		_ = e.pods.GetStore().Add(p)
	}
	known := map[string]*resourceapi.ResourceClaim{}
	for _, c := range e.Claims {
		known[c.Name] = c
	}
	e.byName = known
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	live := float64(m.HeapAlloc) / 1e6
	stop := make(chan struct{})
	peak := make(chan uint64)
	go func() {
		most := uint64(0)
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
			select {
			case <-stop:
				peak <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	for b.Loop() {
		clear(k.kinds)
		before := processorTime()
		now := time.Now()
		objects, _ := e.Objects()
		k.group(objects, now)
		for range kinds {
			k.ask(context.Background(), objects, k.next(now), now)
		}
		asking := processorTime() - before
		for range 10 {
			k.group(objects, now)
			if k.next(now) != nil {
				b.Fatal("more kinds than expected")
			}
		}
		scanning := processorTime() - before - asking
		b.ReportMetric(asking.Seconds()*1000/kinds, "answer-cpu-ms")
		b.ReportMetric(scanning.Seconds()*1000/10, "scan-cpu-ms")
		b.ReportMetric(asking.Seconds()*float64(workPace.Share), "all-answers-s")
	}
	close(stop)
	b.ReportMetric(live, "live-MB")
	b.ReportMetric(float64(<-peak)/1e6, "peak-MB")
}

// processorTime is the processor time of the process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
