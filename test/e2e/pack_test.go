//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// smallDeployment has one pod with the smallest partition, from a template.
const smallDeployment = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: small, namespace: %[1]s}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: mig.nvidia.com,
  selectors: [{cel: {expression: "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}]}}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: small, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: small}}
  template:
    metadata: {labels: {app: small}}
    spec:
      terminationGracePeriodSeconds: 1
      resourceClaims: [{name: gpu, resourceClaimTemplateName: small}]
      containers: [{name: probe, image: %[2]q, imagePullPolicy: Never, args: [look, --hold], resources: {claims: [{name: gpu}]}}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: small, namespace: %[1]s}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: small}}}
`

// TestPack_GroupBlockedBySmallPod_CommandsFreeIt blocks both groups of four: one by a GPU that no controller's pod holds,
// one by a partition of a Deployment. The commands of the plan move the partition to another GPU, and the pod that waits runs.
func TestPack_GroupBlockedBySmallPod_CommandsFreeIt(t *testing.T) {
	ctx := testContext(t, everyDevice...)
	namespace := createNamespace(ctx, t, nil)
	four := request("gpu", env.Driver)
	four.Exactly.Count = 4
	createRequests(ctx, t, namespace, "keeper", "", four)
	createPod(ctx, t, namespace, "keeper", "keeper", nil)
	waitRunning(ctx, t, namespace, "keeper")
	manifest := filepath.Join(t.TempDir(), "small.yaml")
	must(t, os.WriteFile(manifest, fmt.Appendf(nil, smallDeployment, namespace, probeImage(t)), 0o600))
	_, err := cluster.Kubectl(ctx, "apply", "-f", manifest)
	must(t, err)
	small := func(ctx context.Context) *corev1.Pod {
		list, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=small"})
		must(t, err)
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
				return &p
			}
		}
		return nil
	}
	must(t, cluster.Eventually(ctx, "the Deployment runs", time.Minute, func(ctx context.Context) (bool, string) { return small(ctx) != nil, "no pod" }))
	before := small(ctx)
	must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, "keeper", metav1.DeleteOptions{}))
	must(t, cluster.Client.ResourceV1().ResourceClaims(namespace).Delete(ctx, "keeper", metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the keeper is gone", time.Minute, func(ctx context.Context) (bool, string) {
		list, err := cluster.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 1, fmt.Sprint(err)
	}))
	createClaim(ctx, t, namespace, "holder", "")
	createPod(ctx, t, namespace, "holder", "holder", nil)
	waitRunning(ctx, t, namespace, "holder")
	createRequests(ctx, t, namespace, "train", "", groupOf(4))
	createPod(ctx, t, namespace, "train", "train", nil)
	waitUnschedulable(ctx, t, namespace, "train")

	plan := kubectlGPU(ctx, t, "pack", "train", "-n", namespace)
	t.Log(plan)
	if want := " after 1 move:\n  1. move " + namespace + "/" + before.Name + " from "; !strings.Contains(plan, want) {
		t.Fatalf("the plan lacks %q:\n%s", want, plan)
	}
	if now := small(ctx); now == nil || now.UID != before.UID {
		t.Fatalf("the plan moved the pod")
	}
	_, commands, _ := strings.Cut(plan, "Commands")
	ran := 0
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		switch {
		case len(words) < 3 || words[0] != "kubectl":
			continue
		case words[1] == "gpu":
			t.Log(kubectlGPU(ctx, t, words[2:]...))
		default:
			_, err := cluster.Kubectl(ctx, words[1:]...)
			must(t, err)
			must(t, cluster.Eventually(ctx, "the Deployment runs again", time.Minute, func(ctx context.Context) (bool, string) {
				now := small(ctx)
				return now != nil && now.UID != before.UID, "no new pod"
			}))
		}
		ran++
	}
	if ran != 3 {
		t.Fatalf("the plan has %d commands, want a cordon, a deletion and its end", ran)
	}
	train := waitRunning(ctx, t, namespace, "train")
	checkPod(ctx, t, train)
	if n := len(podDevices(ctx, t, train)); n != 4 {
		t.Errorf("the group has %d GPUs", n)
	}
	if now := small(ctx); now == nil || now.UID == before.UID {
		t.Errorf("the Deployment has the pod %v", now)
	}
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, n := range nodes.Items {
		for key := range n.Annotations {
			if strings.HasPrefix(key, "cordon."+env.Driver+"/") {
				t.Errorf("node %s still has the annotation %s", n.Name, key)
			}
		}
	}
	t.Log(kubectlGPU(ctx, t, "layout"))
}
