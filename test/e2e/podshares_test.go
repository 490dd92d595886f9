//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/podshares"
	"gpu-dra-driver/test/e2e/env"
)

// TestPodShares_ThreeForms_GetTheirShares has pods without a claim in each form under a budget; the demos have more of them.
func TestPodShares_ThreeForms_GetTheirShares(t *testing.T) {
	ctx := testContext(t, "--set", "podShares.enabled=true")
	labels := map[string]string{podshares.Label(env.Driver): "true"}
	maps.Copy(labels, budgetLabel)
	namespace := createNamespace(ctx, t, labels)
	applyBudget(ctx, t, namespace, "{gpus: 900m}")
	image := probeImage(t)
	create := func(name string, annotations map[string]string, limits corev1.ResourceList) error {
		_, err := cluster.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
			Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{
				Name: "probe", Image: image, ImagePullPolicy: corev1.PullNever, Args: []string{"look", "--hold"},
				Resources: corev1.ResourceRequirements{Limits: limits},
			}}},
		}, metav1.CreateOptions{})
		return err
	}
	two := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2"), "nvidia.com/gpumem": resource.MustParse("3000")}
	refusedWith(t, "shares of two GPUs", create("two", nil, two), "count: 2, capacity: {requests: {memory: 3000Mi}}", "strategy: TimeSlicing")
	must(t, create("annotation", map[string]string{"gpu.nvidia.com/memory": "10Gi"}, nil))
	must(t, create("hami", nil, corev1.ResourceList{"nvidia.com/gpumem": resource.MustParse("3000")}))
	must(t, create("kai", map[string]string{"gpu-fraction": "0.5"}, nil))
	for name, want := range map[string]int64{"annotation": 10 << 30, "hami": 3000 << 20, "kai": 40779 << 20} {
		p := waitRunning(ctx, t, namespace, name)
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		for _, r := range env.Results(claims[0]) {
			if bytes, ok := env.Share(r); !ok || bytes != want {
				t.Errorf("%s has %d bytes of %s, want a share of %d", name, bytes, r.Device, want)
			}
		}
	}
	// The shares are 0.126, 0.037 and 0.5 of a GPU.
	waitUsed(ctx, t, namespace, "663m")
	refusedWith(t, "more than the budget", create("more", map[string]string{"gpu-fraction": "0.5"}, nil), "GPU budget")
}
