//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package reduced runs the shipped images and chart on a Kubernetes without shared counters: with the feature gate
// DRAPartitionableDevices off. Its scheduler would allocate overlapping devices at the same time.
package reduced

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var must = e2etest.Must

func TestSlices_NoCountersNorShares_OnlyWholeGPUs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s, err := env.FromEnvironment(os.Stderr)
	must(t, err)
	must(t, s.Install(ctx, "hgx-h100", 8, "--set", "kubeletPlugin.driverRootReadOnly=true"))
	demos, err := s.Demos()
	must(t, err)
	byName := map[string]env.Demo{}
	for _, d := range demos {
		byName[d.Name] = d
	}
	// Pods for partitions stay pending, although eight GPUs are free.
	slice := byName["mig-one"]
	must(t, s.Apply(ctx, slice))
	must(t, s.Eventually(ctx, "the pod to find no partition", 60*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := s.Client.CoreV1().Pods(slice.Namespace()).List(ctx, metav1.ListOptions{})
		if err != nil || len(pods.Items) != 1 {
			return false, fmt.Sprint(err)
		}
		return env.Unschedulable(pods.Items[0]) != "", string(pods.Items[0].Status.Phase)
	}))
	// The scheduler allocates all of the node's GPUs, each once.
	all := byName["deployment-of-8"]
	must(t, s.Apply(ctx, all))
	pods, err := s.WaitSettled(ctx, all)
	must(t, err)
	owners := map[string]string{}
	for _, p := range pods {
		view, err := s.Inspect(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		gpus := view.GPUs()
		if p.Status.Phase != corev1.PodRunning || len(gpus) != 1 || len(view.Capabilities()) != 0 {
			t.Errorf("%s is %s and sees %v and %v", p.Name, p.Status.Phase, gpus, view.Capabilities())
			continue
		}
		if owners[gpus[0]] != "" {
			t.Errorf("%s is seen by %s and %s", gpus[0], owners[gpus[0]], p.Name)
		}
		owners[gpus[0]] = p.Name
	}
	published, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver})
	must(t, err)
	for _, slice := range published.Items {
		if len(slice.Spec.SharedCounters) != 0 {
			t.Errorf("%s has counters: this API server does not lack them, start it with DRAPartitionableDevices=false", slice.Name)
		}
		for _, d := range slice.Spec.Devices {
			if kind := d.Attributes["type"].StringValue; kind != nil && (*kind == "mig" || *kind == "nvlink-group") {
				t.Errorf("%s is published", d.Name)
			}
			if isolation := d.Attributes["isolation"].StringValue; d.AllowMultipleAllocations != nil || isolation == nil || *isolation != "hardware" {
				t.Errorf("%s is shared: this API server does not lack that, start it with DRAConsumableCapacity=false", d.Name)
			}
		}
	}
	must(t, s.Remove(ctx, all))
	must(t, s.Remove(ctx, slice))
	// Linked GPUs can still be allocated, one by one.
	four := byName["nvlink-four"]
	must(t, s.Apply(ctx, four))
	pods, err = s.WaitSettled(ctx, four)
	must(t, err)
	view, err := s.Inspect(ctx, pods[0].Namespace, pods[0].Name, pods[0].Spec.Containers[0].Name)
	must(t, err)
	if len(view.GPUs()) != 4 {
		t.Errorf("%s sees %v", pods[0].Name, view.GPUs())
	}
	must(t, s.Remove(ctx, four))
}
