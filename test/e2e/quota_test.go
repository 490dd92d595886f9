//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

func createQuota(ctx context.Context, t *testing.T, namespace, name string, spec corev1.ResourceQuotaSpec) {
	t.Helper()
	_, err := cluster.Client.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	must(t, err)
	must(t, cluster.Eventually(ctx, "the status of quota "+name, 30*time.Second, func(ctx context.Context) (bool, string) {
		q, err := cluster.Client.CoreV1().ResourceQuotas(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) == len(spec.Hard), fmt.Sprint(err)
	}))
}

func hard(entries ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, e := range entries {
		name, n, _ := strings.Cut(e, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(n)
	}
	return out
}

// waitQuota waits until a quota counts what is expected, by entry.
func waitQuota(ctx context.Context, t *testing.T, namespace, name string, want corev1.ResourceList) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "quota "+name, 60*time.Second, func(ctx context.Context) (bool, string) {
		q, err := cluster.Client.CoreV1().ResourceQuotas(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, entry := range slices.Sorted(maps.Keys(want)) {
			n, expected := q.Status.Used[entry], want[entry]
			if n.Cmp(expected) != 0 {
				return false, fmt.Sprintf("%s: %s used, want %s", entry, n.String(), expected.String())
			}
		}
		return true, ""
	}))
}

// TestQuota_Kubernetes_CountsByClassAndPods shows what a ResourceQuota counts, and which of the claims for the same GPUs it does not.
// The table is in docs/quota.md.
func TestQuota_Kubernetes_CountsByClassAndPods(t *testing.T) {
	ctx := testContext(t)
	const (
		ofGPUs  = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
		ofModel = "nvidia-h100-80gb-hbm3.gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
		ofGroup = "nvlink-4.gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
	)
	namespace := createNamespace(ctx, t, nil)
	createQuota(ctx, t, namespace, "some", corev1.ResourceQuotaSpec{Hard: hard(ofGPUs+"=2", "requests.nvidia.com/gpu=2", "limits.nvidia.com/gpu=0")})
	createQuota(ctx, t, namespace, "important", corev1.ResourceQuotaSpec{
		Hard: hard("requests.nvidia.com/gpu=0"),
		ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpExists},
		}},
	})
	// Claims for groups and models of the same GPUs pass the quota by.
	must(t, tryClaim(ctx, namespace, "group", request("gpu", "nvlink-4.gpu.nvidia.com")))
	must(t, tryClaim(ctx, namespace, "model", request("gpu", "nvidia-h100-80gb-hbm3.gpu.nvidia.com")))
	waitQuota(ctx, t, namespace, "some", hard(ofGPUs+"=0", "requests.nvidia.com/gpu=0"))
	out, _ := cluster.KubectlGPU(ctx, "doctor") // It exits with 1 after a warning.
	if want := "its ResourceQuota limits gpu.nvidia.com, and other classes of the same GPUs not"; !strings.Contains(out, want) || !strings.Contains(out, namespace) {
		t.Errorf("kubectl gpu doctor does not say %q of namespace %s:\n%s", want, namespace, out)
	}

	// A claim of the class counts under both entries, and a pod with the resource too.
	must(t, tryClaim(ctx, namespace, "gpu", request("gpu", env.Driver)))
	waitQuota(ctx, t, namespace, "some", hard(ofGPUs+"=1", "requests.nvidia.com/gpu=1"))
	_, err := cluster.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: extended(t, "1")}, metav1.CreateOptions{})
	must(t, err) // limits.nvidia.com/gpu=0 does not refuse it.
	_, err = cluster.WaitPods(ctx, namespace, 1)
	must(t, err)
	waitQuota(ctx, t, namespace, "some", hard(ofGPUs+"=2", "requests.nvidia.com/gpu=2", "limits.nvidia.com/gpu=0"))
	waitQuota(ctx, t, namespace, "important", hard("requests.nvidia.com/gpu=0"))
	refusedWith(t, "a second claim of the class", tryClaim(ctx, namespace, "second", request("gpu", env.Driver)), "exceeded quota: some")
	_, err = cluster.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: extended(t, "1")}, metav1.CreateOptions{})
	refusedWith(t, "a second pod", err, "exceeded quota: some")

	// With an entry for each class, no claim passes it by.
	text, err := cluster.KubectlGPU(ctx, "quota", "-n", namespace, "--resource-quota")
	must(t, err)
	for _, entry := range []string{ofModel, ofGroup, "mig-1g.10gb.nvidia.com.deviceclass.resource.k8s.io/devices"} {
		if !strings.Contains(text, entry+": \"0\"") {
			t.Errorf("kubectl gpu quota --resource-quota lacks %s:\n%s", entry, text)
		}
	}
	if !strings.Contains(text, ofGPUs+": \"2\"") || strings.Contains(text, "monitor.gpu.nvidia.com") {
		t.Errorf("kubectl gpu quota --resource-quota:\n%s", text)
	}
}

// TestLimitRange_ExtendedResource_AppliesToPods gives pods a default, and refuses those above the maximum.
func TestLimitRange_ExtendedResource_AppliesToPods(t *testing.T) {
	ctx := testContext(t)
	namespace := createNamespace(ctx, t, nil)
	one, two := hard("nvidia.com/gpu=1"), hard("nvidia.com/gpu=2")
	_, err := cluster.Client.CoreV1().LimitRanges(namespace).Create(ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}, Spec: corev1.LimitRangeSpec{
		Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Min: one, Max: two, Default: one, DefaultRequest: one}},
	}}, metav1.CreateOptions{})
	must(t, err)
	pod := func(name, n string) error {
		spec := extended(t, "1")
		if n != "" {
			spec.Containers[0].Resources.Limits = hard("nvidia.com/gpu=" + n)
		} else {
			spec.Containers[0].Resources.Limits = nil
		}
		_, err := cluster.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		return err
	}
	must(t, cluster.Eventually(ctx, "the LimitRange", 30*time.Second, func(context.Context) (bool, string) {
		err := pod("three", "3")
		return err != nil && strings.Contains(err.Error(), "maximum nvidia.com/gpu usage per Container is 2"), fmt.Sprint(err)
	}))
	must(t, pod("default", ""))
	pods, err := cluster.WaitPods(ctx, namespace, 1)
	must(t, err)
	if n := pods[0].Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]; n.Value() != 1 || len(podDevices(ctx, t, pods[0])) != 1 {
		t.Errorf("the default is %s, and the pod has %q", n.String(), podDevices(ctx, t, pods[0]))
	}
	// A LimitRange does not know claims.
	must(t, tryClaim(ctx, namespace, "four", request("gpu", env.Driver), request("gpu2", env.Driver), request("gpu3", env.Driver), request("gpu4", env.Driver)))
}
