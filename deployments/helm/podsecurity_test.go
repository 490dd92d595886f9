// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"
)

// TestPods_PodSecurityLevels_RestrictedExceptPluginAndSupervisor evaluates each pod of the chart as API servers do.
func TestPods_PodSecurityLevels_RestrictedExceptPluginAndSupervisor(t *testing.T) {
	evaluator, err := podsecurity.NewEvaluator(podsecurity.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	manifests := render(t, chart)
	pods := map[string]corev1.PodSpec{}
	for name, d := range decode[appsv1.Deployment](t, manifests, "Deployment") {
		pods[name] = d.Spec.Template.Spec
	}
	for name, d := range decode[appsv1.DaemonSet](t, manifests, "DaemonSet") {
		pods[name] = d.Spec.Template.Spec
	}
	for name, j := range decode[batchv1.Job](t, manifests, "Job") {
		pods[name] = j.Spec.Template.Spec
	}
	for name, p := range decode[corev1.Pod](t, manifests, "Pod") {
		pods[name] = p.Spec
	}
	privileged := map[string]bool{"gpu-dra-driver-kubelet-plugin": true, "gpu-dra-driver-mps-supervisor": true}
	if len(pods) < 5 {
		t.Errorf("the chart has only the pods of %d objects", len(pods))
	}
	for name, spec := range pods {
		level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
		result := podsecurity.AggregateCheckResults(evaluator.EvaluatePod(level, &metav1.ObjectMeta{}, &spec))
		if result.Allowed == privileged[name] {
			t.Errorf("%s: allowed %v at the level restricted: %s", name, result.Allowed, result.ForbiddenDetail())
		}
	}
}
