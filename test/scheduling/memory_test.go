//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/demand"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/podevents"
	"gpu-dra-driver/pkg/cluster/preempt"
	"gpu-dra-driver/pkg/cluster/read"
)

// The numbers of objects: about a fifth of those that once took the memory of a default installation.
const (
	largeClaims, parameterClaims, largePods = 55, 240, 25
	// mostLive is the memory that the controller may keep of them, in bytes, and mostPeak what it may take while it reads them.
	mostLive, mostPeak = 20 << 20, 150 << 20
)

// largeRequests returns requests with as many expressions as an object can have, of the length that the API accepts.
func largeRequests(bytes int) (out []resourceapi.DeviceRequest) {
	const each, most = 10_000, 32
	for bytes > 0 {
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: slicetest.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
		for range min(most, bytes/each+1) {
			exactly.Selectors = append(exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
				Expression: `device.driver != "` + strings.Repeat("x", each-50) + `"`,
			}})
			bytes -= each
		}
		out = append(out, resourceapi.DeviceRequest{Name: fmt.Sprint("r", len(out)), Exactly: exactly})
	}
	return out
}

// fill creates the largest objects that a tenant can write into a namespace.
func (p *plane) fill(ctx context.Context) error {
	config := resourceapi.DeviceClaimConfiguration{}
	config.Opaque = &resourceapi.OpaqueDeviceConfiguration{
		Driver: "nic.example.com", Parameters: kruntime.RawExtension{Raw: []byte(`{"x":"` + strings.Repeat("x", 10_000) + `"}`)},
	}
	var small, large resourceapi.ResourceClaimSpec
	large.Devices.Requests, small.Devices.Requests = largeRequests(1_350_000), largeRequests(1)
	for range 32 {
		small.Devices.Config = append(small.Devices.Config, config)
	}
	affinity := &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}}
	term := &affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0]
	term.MatchExpressions = []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpIn}}
	for i := range 18_000 {
		term.MatchExpressions[0].Values = append(term.MatchExpressions[0].Values, fmt.Sprintf("%s%d", strings.Repeat("v", 55), i))
	}
	api, made := p.client.ResourceV1(), metav1.CreateOptions{}
	for i := range largeClaims {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("large-", i)}
		if _, err := api.ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: large}, made); err != nil {
			return err
		}
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: meta, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: large}}
		if _, err := api.ResourceClaimTemplates(namespace).Create(ctx, template, made); err != nil {
			return err
		}
	}
	for i := range parameterClaims {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("parameters-", i)}
		if _, err := api.ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: small}, made); err != nil {
			return err
		}
	}
	for i := range largePods {
		name := fmt.Sprint("large-", i)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "x"}}, Affinity: &corev1.Affinity{NodeAffinity: affinity},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
		}}
		if _, err := p.client.CoreV1().Pods(namespace).Create(ctx, pod, made); err != nil {
			return err
		}
	}
	return nil
}

// live is the memory of all objects in use.
func live() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestController_LargestObjectsOfATenant_LittleMemory fills an API server with the largest objects that a tenant can write, and starts
// the controller with all of its parts. It has the memory limit of the chart in proportion, as the shipped controller has.
func TestController_LargestObjectsOfATenant_LittleMemory(t *testing.T) {
	ctx := t.Context()
	p := newPlane(ctx, t)
	must(t, p.fill(ctx))
	lists := map[schema.GroupVersionResource]string{}
	for _, version := range read.RuleVersions {
		lists[read.RuleResource(version)] = "DeviceTaintRuleList"
	}
	rules := read.NewRules(dynamicfake.NewSimpleDynamicClientWithCustomListKinds(kruntime.NewScheme(), lists))
	control := controller.New(slicetest.Driver, p.client, controller.Options{
		Waiting: true, Preemption: true, LabelNodes: true, Grace: time.Minute,
		OnDemand: true,
		Classes:  deviceclasses.Options{Driver: slicetest.Driver, Models: true},
	})
	before := live()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(before + mostPeak/2))
	var peak atomic.Int64
	running, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for running.Err() == nil {
			metrics.Read(sample)
			peak.Store(max(peak.Load(), int64(sample[0].Value.Uint64())))
			time.Sleep(time.Millisecond)
		}
	})
	events := podevents.New(p.client, rules, control, podevents.Options{Driver: slicetest.Driver})
	evictions := preempt.New(p.client, rules, control, record.NewFakeRecorder(1000), preempt.Options{Driver: slicetest.Driver})
	published := demand.New(p.client, control, demand.Options{Driver: slicetest.Driver, ConfigMap: "demand", Namespace: namespace})
	for _, run := range []func(context.Context) error{control.Observe, control.Lead, published.Run, events.Run, evictions.Run} {
		wg.Go(func() {
			if err := run(running); err != nil {
				t.Error(err)
			}
		})
	}
	must(t, p.until(ctx, "the controller has read all claims", func() error {
		objects, _ := control.Objects()
		marks := 0
		for _, claim := range objects.Claims {
			if bounded.TooLarge(claim) {
				marks++
			}
		}
		if marks != largeClaims+parameterClaims {
			return fmt.Errorf("%d of %d claims", marks, largeClaims+parameterClaims)
		}
		return nil
	}))
	must(t, p.until(ctx, "each pod has an Event", func() error {
		list, err := p.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		about := map[string]bool{}
		for _, e := range list.Items {
			if strings.Contains(e.Message, "too large for the controller's memory") {
				about[e.InvolvedObject.Name] = true
			}
		}
		if len(about) < largePods {
			return fmt.Errorf("Events about %d of %d pods", len(about), largePods)
		}
		return nil
	}))
	kept := live() - before
	t.Logf("the controller keeps %d kB, and took %d MB at most", kept>>10, (peak.Load()-before)>>20)
	if kept > mostLive || peak.Load()-before > mostPeak {
		t.Errorf("of the objects of one tenant the controller keeps %d MB, and took %d MB while it read them", kept>>20, (peak.Load()-before)>>20)
	}
}
