//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/test/e2e/env"
)

var budgetLabel = map[string]string{v1alpha1.NamespaceLabel(env.Driver): "true"}

// applyBudget gives a namespace a budget, by a text of its limits, and waits until it is counted.
func applyBudget(ctx context.Context, t *testing.T, namespace, hard string) {
	t.Helper()
	must(t, tryBudget(ctx, t, namespace, hard))
	must(t, cluster.Eventually(ctx, "the budget counted", 30*time.Second, func(ctx context.Context) (bool, string) {
		b := budgetOf(ctx, t, namespace)
		return b.Status.ObservedGeneration == b.Generation && b.Status.CountedVersion != "", fmt.Sprintf("%+v", b.Status)
	}))
}

func tryBudget(ctx context.Context, t *testing.T, namespace, hard string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "budget.yaml")
	text := fmt.Sprintf("apiVersion: %s/v1alpha1\nkind: GPUBudget\nmetadata: {name: default, namespace: %s}\nspec: {hard: %s}\n", env.Driver, namespace, hard)
	must(t, os.WriteFile(file, []byte(text), 0o600))
	out, err := cluster.Kubectl(ctx, "apply", "-f", file)
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func budgetOf(ctx context.Context, t *testing.T, namespace string) (out v1alpha1.GPUBudget) {
	t.Helper()
	text, err := cluster.Kubectl(ctx, "get", "gpubudgets."+env.Driver, "-n", namespace, "default", "-o", "json")
	must(t, err)
	must(t, json.Unmarshal([]byte(text), &out))
	return out
}

// waitUsed waits until the use of a budget is counted without reservations.
func waitUsed(ctx context.Context, t *testing.T, namespace, gpus string) {
	t.Helper()
	want := resource.MustParse(gpus)
	must(t, cluster.Eventually(ctx, "use of "+gpus, 30*time.Second, func(ctx context.Context) (bool, string) {
		s := budgetOf(ctx, t, namespace).Status
		return s.Used.GPUs != nil && s.Used.GPUs.Cmp(want) == 0 && len(s.Reservations) == 0, fmt.Sprintf("%v used, reservations %v", s.Used.GPUs, s.Reservations)
	}))
}

func tryClaim(ctx context.Context, namespace, name string, requests ...resourceapi.DeviceRequest) error {
	_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}, metav1.CreateOptions{})
	return err
}

func refusedWith(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
}

// TestBudget_HundredClaimsAtOnce_EndExactlyAtTheLimit creates claims against both replicas of the controller.
func TestBudget_HundredClaimsAtOnce_EndExactlyAtTheLimit(t *testing.T) {
	ctx := testContext(t)
	namespace := createNamespace(ctx, t, budgetLabel)
	applyBudget(ctx, t, namespace, "{gpus: 37}")
	var wg sync.WaitGroup
	var made atomic.Int32
	began := time.Now()
	for i := range 100 {
		wg.Go(func() {
			err := tryClaim(ctx, namespace, fmt.Sprint("c-", i), request("gpu", env.Driver))
			switch {
			case err == nil:
				made.Add(1)
			case !strings.Contains(err.Error(), "37 of 37 are used"):
				t.Errorf("claim %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	t.Logf("100 creations took %v", time.Since(began))
	list, err := cluster.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	if made.Load() != 37 || len(list.Items) != 37 {
		t.Errorf("%d creations succeeded, %d claims exist", made.Load(), len(list.Items))
	}
	waitUsed(ctx, t, namespace, "37")
	must(t, cluster.Client.ResourceV1().ResourceClaims(namespace).Delete(ctx, list.Items[0].Name, metav1.DeleteOptions{}))
	waitUsed(ctx, t, namespace, "36")
	must(t, tryClaim(ctx, namespace, "last", request("gpu", env.Driver)))
}

// TestBudget_EveryForm_CountsAndRefuses asks for GPUs in each form under one budget.
func TestBudget_EveryForm_CountsAndRefuses(t *testing.T) {
	ctx := testContext(t)
	plain := createNamespace(ctx, t, nil)
	refusedWith(t, "a budget without the label", tryBudget(ctx, t, plain, "{gpus: 1}"), "kubectl label namespace "+plain+" gpu.nvidia.com/budget=true")

	namespace := createNamespace(ctx, t, budgetLabel)
	for hard, want := range map[string]string{"{gpus: -1}": "Invalid value", "{gpus: 1 GPU}": "Invalid value", "{memory: 1e30}": "Invalid value", "{models: [{gpus: 1}]}": "productName"} {
		refusedWith(t, hard, tryBudget(ctx, t, namespace, hard), want)
	}
	applyBudget(ctx, t, namespace, "{gpus: '2', memory: 200Gi, models: [{productName: NVIDIA H100 80GB HBM3, gpus: 2}]}")

	refusedWith(t, "a group", tryClaim(ctx, namespace, "group", groupOf(4)), "GPU budget "+namespace+"/default is exhausted: GPUs: it asks for 4, 0 of 2 are used")
	all := request("gpu", env.Driver)
	all.Exactly.AllocationMode = resourceapi.DeviceAllocationModeAll
	refusedWith(t, "all GPUs", tryClaim(ctx, namespace, "all", all), "allocationMode All cannot be counted")
	refusedWith(t, "alternatives", tryClaim(ctx, namespace, "either", resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "small", DeviceClassName: "mig-1g.10gb.nvidia.com"}, {Name: "large", DeviceClassName: "nvlink-4.gpu.nvidia.com"},
	}}), "GPUs: it asks for 4")
	share := request("gpu", env.Driver)
	share.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("8Gi"), "compute": resource.MustParse("25")}}
	must(t, tryClaim(ctx, namespace, "share", share))
	must(t, tryClaim(ctx, namespace, "partition", request("gpu", "mig-1g.10gb.nvidia.com")))
	must(t, tryClaim(ctx, namespace, "whole", request("gpu", "nvidia-h100-80gb-hbm3.gpu.nvidia.com")))
	waitUsed(ctx, t, namespace, "1375m")
	refusedWith(t, "a second GPU", tryClaim(ctx, namespace, "second", request("gpu", env.Driver)), "GPUs: it asks for 1, 1.375 of 2 are used", "GPUs of NVIDIA H100 80GB HBM3")
	// An allocated claim costs what it got, and a shared one once.
	createPod(ctx, t, namespace, "one", "share", nil)
	createPod(ctx, t, namespace, "two", "share", nil)
	_, err := cluster.WaitPods(ctx, namespace, 2)
	must(t, err)
	waitUsed(ctx, t, namespace, "1375m")
	must(t, cluster.Client.ResourceV1().ResourceClaims(namespace).Delete(ctx, "whole", metav1.DeleteOptions{}))
	waitUsed(ctx, t, namespace, "375m")

	// The scheduler makes claims for extended resources.
	gpus := func(name, n string) error {
		_, err := cluster.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: extended(t, n)}, metav1.CreateOptions{})
		return err
	}
	refusedWith(t, "a pod with two GPUs", gpus("three", "2"), "GPUs: it asks for 2, 0.375 of 2 are used")
	must(t, gpus("three", "1"))
	_, err = cluster.WaitPods(ctx, namespace, 3)
	must(t, err)
	waitUsed(ctx, t, namespace, "1375m")

	_, err = cluster.Client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "d"}}, Spec: extended(t, "1")},
	}}, metav1.CreateOptions{})
	must(t, err)
	must(t, cluster.Eventually(ctx, "the Deployment's condition", 60*time.Second, func(ctx context.Context) (bool, string) {
		d, err := cluster.Client.AppsV1().Deployments(namespace).Get(ctx, "d", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && strings.Contains(c.Message, "GPU budget "+namespace+"/default is exhausted") {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", d.Status.Conditions)
	}))

	out, err := cluster.Kubectl(ctx, "get", "gpubudgets", "-n", namespace)
	must(t, err)
	t.Log(out)

	// Without the label, the webhook is not asked.
	_, err = cluster.Kubectl(ctx, "label", "namespace", namespace, v1alpha1.NamespaceLabel(env.Driver)+"-")
	must(t, err)
	must(t, cluster.Eventually(ctx, "claims refused without the label", 60*time.Second, func(ctx context.Context) (bool, string) {
		err := tryClaim(ctx, namespace, "unlabelled", request("gpu", "mig-1g.10gb.nvidia.com"))
		if err == nil {
			must(t, cluster.Client.ResourceV1().ResourceClaims(namespace).Delete(ctx, "unlabelled", metav1.DeleteOptions{}))
		}
		return err != nil && strings.Contains(err.Error(), "the namespace has a GPU budget and not its label"), fmt.Sprint(err)
	}))
	must(t, tryClaim(ctx, plain, "free", request("gpu", "mig-1g.10gb.nvidia.com")))
}

// extended is a pod that asks for nvidia.com/gpu.
func extended(t *testing.T, n string) corev1.PodSpec {
	t.Helper()
	return corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{
		Name: "probe", Image: probeImage(t), ImagePullPolicy: corev1.PullNever, Args: []string{"look", "--hold"},
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}},
	}}}
}

// TestBudget_NoController_NamespacesWithABudgetAreRefused scales the controller down.
func TestBudget_NoController_NamespacesWithABudgetAreRefused(t *testing.T) {
	ctx := testContext(t)
	budgeted, plain := createNamespace(ctx, t, budgetLabel), createNamespace(ctx, t, nil)
	applyBudget(ctx, t, budgeted, "{gpus: 4}")
	scale := func(ctx context.Context, replicas int32) {
		_, err := cluster.Client.AppsV1().Deployments(env.Namespace).UpdateScale(ctx, env.Release+"-controller", &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: env.Release + "-controller", Namespace: env.Namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
		}, metav1.UpdateOptions{})
		must(t, err)
	}
	ready := func(ctx context.Context, n int32) {
		must(t, cluster.Eventually(ctx, fmt.Sprint(n, " controllers"), 2*time.Minute, func(ctx context.Context) (bool, string) {
			d, err := cluster.Client.AppsV1().Deployments(env.Namespace).Get(ctx, env.Release+"-controller", metav1.GetOptions{})
			return err == nil && d.Status.ReadyReplicas == n && d.Status.Replicas == n, fmt.Sprint(err)
		}))
	}
	scale(ctx, 0)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		scale(ctx, 2)
		ready(ctx, 2)
		must(t, cluster.Eventually(ctx, "claims under the budget", time.Minute, func(ctx context.Context) (bool, string) {
			err := tryClaim(ctx, budgeted, "back", request("gpu", env.Driver))
			return err == nil, fmt.Sprint(err)
		}))
		waitUsed(ctx, t, budgeted, "1")
	})
	ready(ctx, 0)
	must(t, cluster.Eventually(ctx, "claims refused", time.Minute, func(ctx context.Context) (bool, string) {
		err := tryClaim(ctx, budgeted, "refused", request("gpu", env.Driver))
		return err != nil && strings.Contains(err.Error(), "budget.gpu.nvidia.com"), fmt.Sprint(err)
	}))
	must(t, tryClaim(ctx, plain, "allowed", request("gpu", env.Driver)))
}

// checkBudget checks that the demo's budget shows the use of its pods.
func checkBudget(ctx context.Context, t *testing.T, _ []corev1.Pod) {
	waitUsed(ctx, t, "demo-budget", "1250m")
	if out := kubectlGPU(ctx, t, "quota", "-n", "demo-budget"); !strings.Contains(out, "83%") {
		t.Errorf("kubectl gpu quota:\n%s", out)
	}
}
