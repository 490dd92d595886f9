//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// TestPolicies_ForbiddenObjects_RefusedWithReason enables every policy of the chart, on a real API server.
func TestPolicies_ForbiddenObjects_RefusedWithReason(t *testing.T) {
	ctx := testContext(t)
	claimed := func(namespace string, r resourceapi.DeviceRequest) error {
		_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	fraction := request("gpu", env.Driver)
	fraction.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}}
	t.Cleanup(func() {
		ctx = context.WithoutCancel(ctx)
		must(t, cluster.Helm(ctx))
		// A removed policy stays in force for a moment, and the next test uses fractions.
		must(t, cluster.Eventually(ctx, "the policies gone", 60*time.Second, func(context.Context) (bool, string) {
			err := claimed("default", fraction)
			return err == nil, fmt.Sprint(err)
		}))
	})
	must(t, cluster.Helm(ctx, "--values", filepath.Join(cluster.Tree, "deployments/helm/testdata/values/policies.yaml")))
	namespace := createNamespace(ctx, t, nil)
	image := probeImage(t)
	gpus := func(n string, change func(*corev1.Pod)) error {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: map[string]string{"kueue.x-k8s.io/queue-name": "q"}}, Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{Name: "c", Image: image, Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)},
			}}},
		}}
		change(p)
		_, err := cluster.Client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// A new policy takes effect after a moment.
	must(t, cluster.Eventually(ctx, "the policies", 60*time.Second, func(context.Context) (bool, string) {
		return gpus("5", func(*corev1.Pod) {}) != nil && claimed(namespace, fraction) != nil, "they refuse nothing yet"
	}))
	five := request("gpu", env.Driver)
	five.Exactly.Count = 5
	more := groupOf(4)
	more.Exactly.Selectors[0].CEL.Expression += ` || ` + strings.Replace(more.Exactly.Selectors[0].CEL.Expression, "== 4", "> 4", 1)
	for name, c := range map[string]struct {
		err    error
		denied string
	}{
		"a pod as it should be":    {gpus("4", func(*corev1.Pod) {}), ""},
		"a pod without toleration": {gpus("1", func(p *corev1.Pod) { p.Spec.Tolerations = nil }), "add to its tolerations {key: nvidia.com/gpu, operator: Exists}"},
		"a pod without queue":      {gpus("1", func(p *corev1.Pod) { p.Labels = nil }), "give it the label kueue.x-k8s.io/queue-name"},
		"a pod with too many":      {gpus("5", func(*corev1.Pod) {}), "this pod asks for 5 GPUs, and 4 are allowed"},
		"a pod without GPUs": {gpus("0", func(p *corev1.Pod) {
			p.Labels, p.Spec.Tolerations, p.Spec.Containers[0].Resources = nil, nil, corev1.ResourceRequirements{}
		}), ""},
		"a claim as it should be":        {claimed(namespace, request("gpu", env.Driver)), ""},
		"a group of four":                {claimed(namespace, groupOf(4)), ""},
		"a group of eight":               {claimed(namespace, groupOf(8)), "more than 4 GPUs"},
		"a group of four and more":       {claimed(namespace, more), "more than 4 GPUs"},
		"a group of any size":            {claimed(namespace, request("gpu", "nvlink.gpu.nvidia.com")), "without saying of how many"},
		"a claim with too many":          {claimed(namespace, five), "more than 4 GPUs"},
		"a fraction":                     {claimed(namespace, fraction), `namespaces with the label gpu-dra-driver/fractions: "true"`},
		"a fraction where it is allowed": {claimed(createNamespace(ctx, t, map[string]string{"gpu-dra-driver/fractions": "true"}), fraction), ""},
	} {
		switch {
		case c.denied == "" && c.err != nil:
			t.Errorf("%s: %v", name, c.err)
		case c.denied != "" && (c.err == nil || !strings.Contains(c.err.Error(), c.denied)):
			t.Errorf("%s: %v, want %q", name, c.err, c.denied)
		}
	}
}

// checkQuotaEvent checks the Event that gives the reason for a pending pod.
func checkQuotaEvent(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	checkDevices(2)(ctx, t, pods)
	for _, p := range pods {
		if p.Status.Phase == corev1.PodPending {
			waitEvent(ctx, t, p.Namespace, p.Name, "exceeded quota: gpus", "requested: gpu.nvidia.com.deviceclass.resource.k8s.io/devices=1", "limited: gpu.nvidia.com.deviceclass.resource.k8s.io/devices=2")
		}
	}
}
