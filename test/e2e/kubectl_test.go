//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/show/view"
	"gpu-dra-driver/test/e2e/env"
)

// TestKubectl_LsAndWhy_AgreeWithTheCluster lists the GPUs of the slices with their holder. The scheduler places the pod
// of which `kubectl gpu why` says that it fits, and not the other one.
func TestKubectl_LsAndWhy_AgreeWithTheCluster(t *testing.T) {
	ctx := testContext(t)
	pod := runDemo(ctx, t, "one-gpu")[0]
	held := podDevices(ctx, t, pod)[0]

	var ls struct{ Items []view.GPU }
	must(t, json.Unmarshal([]byte(kubectlGPU(ctx, t, "ls", "-o", "json")), &ls))
	devices, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	want, got := map[string]string{}, map[string]string{}
	for _, d := range devices {
		want[d.Name] = *d.Attributes["uuid"].StringValue
	}
	for _, g := range ls.Items {
		got[g.Name] = g.UUID
		if holders := g.Holders(); (g.Name == held) != (len(holders) == 1) {
			t.Errorf("kubectl gpu ls says that %v hold %s; pod %s has %s", holders, g.Name, pod.Name, held)
		}
	}
	if !maps.Equal(want, got) {
		t.Errorf("kubectl gpu ls lists %v, the slices have %v", got, want)
	}

	namespace := createNamespace(ctx, t, nil)
	ask := func(count int) why.Answer {
		file := filepath.Join(t.TempDir(), "claim.yaml")
		text := fmt.Sprintf("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: asked, namespace: %s}\n"+
			"spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: %s, count: %d}}]}}\n", namespace, env.Driver, count)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		var answers struct{ Items []why.Answer }
		out, err := cluster.KubectlGPU(ctx, "why", "-f", file, "-o", "json")
		must(t, json.Unmarshal([]byte(out), &answers))
		if len(answers.Items) != 1 {
			t.Fatalf("kubectl gpu why: %v", answers)
		}
		if fits := answers.Items[0].Result == why.Fits; fits != (err == nil) {
			t.Errorf("kubectl gpu why -f for %d GPUs: %v, with the answer %s", count, err, answers.Items[0])
		}
		_, err = cluster.Kubectl(ctx, "apply", "-f", file)
		must(t, err)
		return answers.Items[0]
	}
	free := len(devices) - 1
	if a := ask(free); a.Result != why.Fits || !slices.Equal(a.Fits, []string{pod.Spec.NodeName}) {
		t.Errorf("%d of %d GPUs are free: %s", free, len(devices), a)
	}
	createPod(ctx, t, namespace, "asked", "asked", nil)
	_, err = cluster.WaitPods(ctx, namespace, 1)
	must(t, err)
	must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, "asked", metav1.DeleteOptions{}))
	must(t, cluster.Client.ResourceV1().ResourceClaims(namespace).Delete(ctx, "asked", metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the claim is gone", time.Minute, func(ctx context.Context) (bool, string) {
		list, err := cluster.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, fmt.Sprint(err)
	}))

	a := ask(len(devices))
	if release := pod.Namespace + "/"; a.Result != why.Waits || !slices.ContainsFunc(a.Cures, func(c why.Cure) bool {
		return len(c.Release) == 1 && len(c.Release[0]) > len(release) && c.Release[0][:len(release)] == release
	}) {
		t.Errorf("one of %d GPUs is held: %s", len(devices), a)
	}
	createPod(ctx, t, namespace, "waits", "asked", nil)
	must(t, cluster.Eventually(ctx, "the scheduler refuses the pod", time.Minute, func(ctx context.Context) (bool, string) {
		p, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, "waits", metav1.GetOptions{})
		return err == nil && env.Unschedulable(*p) != "", fmt.Sprint(err)
	}))
}

// TestDoctor_SlicesOfAnotherDriver_AreNamed writes a slice as NVIDIA's driver does. It is for a node that does not exist, because
// this driver's plugin deletes such slices of its own node.
func TestDoctor_SlicesOfAnotherDriver_AreNamed(t *testing.T) {
	ctx := testContext(t)
	const node = "other-node"
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-" + env.Driver + "-"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: env.Driver, NodeName: new(node), Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "gpu-0"}},
	}}
	slice, err := cluster.Client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, cluster.Client.ResourceV1().ResourceSlices().Delete(context.WithoutCancel(ctx), slice.Name, metav1.DeleteOptions{}))
	})
	out, err := cluster.KubectlGPU(ctx, "doctor")
	if want := "another driver publishes the pool " + node; err == nil || !strings.Contains(out, want) {
		t.Errorf("%v: doctor lacks %q:\n%s", err, want, out)
	}
}
