//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

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

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

// Variables with the paths of KEDA's programs and manifests, which hack/test-ecosystem.sh sets.
const kedaOperator, kedaAdapter, kedaManifests = "KEDA_OPERATOR", "KEDA_ADAPTER", "KEDA_MANIFESTS"

// installKEDA runs the operator and the server of external metrics.
func (n *node) installKEDA(ctx context.Context, t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	base, err := filepath.Rel(dir, os.Getenv(kedaManifests))
	must(t, err)
	text := strings.NewReplacer("[base]", "["+base+"]", "OPERATOR", os.Getenv(kedaOperator), "ADAPTER", os.Getenv(kedaAdapter)).
		Replace(readFile(t, filepath.Join(n.Tree, "test/e2e/monitoring/testdata/keda/kustomization.yaml")))
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	kubectl := func(args ...string) {
		t.Helper()
		_, err := n.Kubectl(ctx, args...)
		must(t, err)
	}
	kubectl("apply", "--server-side", "--kustomize", dir)
	kubectl("-n", "keda", "rollout", "status", "deployment/keda-operator", "--timeout=240s")
	pods, err := n.Client.CoreV1().Pods("keda").List(ctx, metav1.ListOptions{LabelSelector: "app=keda-operator"})
	must(t, err)
	kubectl("-n", "keda", "patch", "deployment", "keda-metrics-apiserver", "-p", fmt.Sprintf(
		`{"spec": {"replicas": 1, "template": {"spec": {"hostAliases": [{"ip": %q, "hostnames": ["keda-operator.keda.svc.cluster.local"]}]}}}}`,
		pods.Items[0].Status.PodIP))
	kubectl("-n", "keda", "rollout", "status", "deployment/keda-metrics-apiserver", "--timeout=120s")
	kubectl("wait", "--for=condition=Available", "apiservice/v1beta1.external.metrics.k8s.io", "--timeout=60s")
}

// TestInference_SharesBusy_ScaledByAutoscalerAndKEDA has the server of demo/recipes/inference.yaml follow the use of its shares: first
// by a HorizontalPodAutoscaler, then by a ScaledObject.
func TestInference_SharesBusy_ScaledByAutoscalerAndKEDA(t *testing.T) {
	if os.Getenv(kedaOperator) == "" {
		t.Fatal(kedaOperator + " is not set: run make test-ecosystem SUITE=inference")
	}
	ctx := e2etest.Context(t, 18*time.Minute)
	const namespace = "recipe-inference"
	e, err := env.FromEnvironment(os.Stderr)
	must(t, err)
	kubectl := func(args ...string) {
		t.Helper()
		_, err := e.Kubectl(ctx, args...)
		must(t, err)
	}
	kubectl("apply", "-f", filepath.Join(e.Tree, "test/e2e/monitoring/testdata/operator.yaml"))
	kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	must(t, e.Install(ctx, "hgx-h100", 8, "--set", "serviceMonitor.enabled=true"))
	n := &node{}
	n.prometheus, err = startPrometheus(ctx, e, t.TempDir(), []byte("groups: []"))
	must(t, err)
	t.Cleanup(n.stop)
	n.installAdapter(ctx, t)
	n.installKEDA(ctx, t)

	// pods waits until the server has a number of pods with a load, and the autoscaler wants no other number.
	pods := func(autoscaler, load string, want int) []corev1.Pod {
		t.Helper()
		began := time.Now()
		var running []corev1.Pod
		must(t, n.Eventually(ctx, fmt.Sprint("server scaled to pods: ", want), 4*time.Minute, func(ctx context.Context) (bool, string) {
			all, err := n.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			must(t, err)
			running = nil
			for _, p := range all.Items {
				if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil && p.Spec.Containers[0].Args[4] == load {
					running = append(running, p)
				}
			}
			hpa, err := n.Client.AutoscalingV2().HorizontalPodAutoscalers(namespace).Get(ctx, autoscaler, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return len(running) == want && len(all.Items) == want && int(hpa.Status.DesiredReplicas) == want && hpa.Status.CurrentMetrics != nil,
				fmt.Sprintf("%d of %d pods run; %+v", len(running), len(all.Items), hpa.Status)
		}))
		t.Logf("%s: %d pods after %.0f s", autoscaler, want, time.Since(began).Seconds())
		return running
	}
	load := func(percent string) {
		t.Helper()
		kubectl("-n", namespace, "patch", "deployment", "server", "--type=json",
			`-p=[{"op": "replace", "path": "/spec/template/spec/containers/0/args/4", "value": "`+percent+`"}]`)
	}
	recipe := filepath.Join(n.Tree, "demo/recipes/inference.yaml")
	kubectl("apply", "-f", recipe)
	used := map[string]int{}
	for _, p := range pods("server", "20", 4) {
		claims, err := n.Claims(ctx, p)
		must(t, err)
		view, err := n.Inspect(ctx, namespace, p.Name, "probe")
		must(t, err)
		if len(claims) != 1 || len(env.Results(claims[0])) != 1 || len(view.UUIDs()) != 1 {
			t.Fatalf("%s has the claims %+v, and sees %v", p.Name, claims, view.UUIDs())
		}
		if bytes, ok := env.Share(env.Results(claims[0])[0]); !ok || bytes != 19<<30 {
			t.Errorf("%s has a share of %d bytes", p.Name, bytes)
		}
		used[view.UUIDs()[0]]++
	}
	if len(used) != 1 {
		t.Errorf("the shares are on the GPUs %v, want one", used)
	}

	// KEDA makes the autoscaler itself.
	kubectl("-n", namespace, "delete", "hpa", "server")
	load("5")
	scaled := readFile(t, filepath.Join(n.Tree, "demo/recipes/inference-keda.yaml"))
	const documented = "http://prometheus-operated.monitoring.svc:9090"
	if !strings.Contains(scaled, documented) {
		t.Fatalf("the ScaledObject does not ask %s", documented)
	}
	must(t, n.apply(ctx, t, strings.ReplaceAll(scaled, documented, "http://"+n.address)))
	pods("keda-hpa-server", "5", 1)
	load("20")
	pods("keda-hpa-server", "20", 4)
	kubectl("-n", namespace, "wait", "--for=condition=Ready", "scaledobject/server", "--timeout=30s")
	kubectl("delete", "namespace", namespace, "--wait=false")
	must(t, n.Eventually(ctx, "no claim left", 90*time.Second, func(ctx context.Context) (bool, string) {
		left, err := n.Client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, fmt.Sprint(err)
	}))
	kubectl("delete", "apiservice", "v1beta1.external.metrics.k8s.io", "v1beta1.custom.metrics.k8s.io")
}
