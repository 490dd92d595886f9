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
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/sim/engine"
)

// Variables with paths of programs and manifests of hack/test-monitoring.sh: prometheus-adapter, and KEDA's definition of
// ScaledObject.
const adapterProgram, kedaDefinition = "PROMETHEUS_ADAPTER", "KEDA_SCALEDOBJECT"

const autoscaled = "autoscaling"

func (n *node) demo(name string) string {
	return filepath.Join(n.Tree, "demo", "autoscaling", name)
}

func (n *node) apply(ctx context.Context, t *testing.T, text string, args ...string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	_, err := n.Kubectl(ctx, append([]string{"apply", "-f", file}, args...)...)
	return err
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// installAdapter runs prometheus-adapter with the rules of the demo.
func (n *node) installAdapter(ctx context.Context, t *testing.T) {
	program := os.Getenv(adapterProgram)
	if program == "" {
		t.Fatal(adapterProgram + " is not set: run make test-monitoring")
	}
	var values struct {
		Rules struct{ Custom []any }
	}
	must(t, yaml.Unmarshal([]byte(readFile(t, n.demo("adapter.yaml"))), &values))
	config, err := yaml.Marshal(object{"rules": values.Rules.Custom})
	must(t, err)
	manifest := readFile(t, filepath.Join(n.Tree, "test", "e2e", "monitoring", "testdata", "adapter.yaml"))
	must(t, n.apply(ctx, t, strings.NewReplacer("PROGRAM", program, "PROMETHEUS", "http://"+n.address).Replace(manifest)))
	_, err = n.Client.CoreV1().ConfigMaps("adapter").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "adapter"}, Data: map[string]string{"config.yaml": string(config)},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = n.Kubectl(ctx, "-n", "adapter", "rollout", "status", "deployment/adapter", "--timeout=120s")
	must(t, err)
	_, err = n.Kubectl(ctx, "wait", "--for=condition=Available", "apiservice/v1beta1.custom.metrics.k8s.io", "--timeout=60s")
	must(t, err)
}

const (
	busyProcess = "4000100"
	busyLoad    = "95"
)

// scaled waits until the Deployment has a number of pods. Until then each of their GPUs runs a process, or none.
func (n *node) scaled(ctx context.Context, t *testing.T, want int, busy bool) {
	t.Helper()
	began := time.Now()
	must(t, n.Eventually(ctx, fmt.Sprint("autoscaled to pods: ", want), 4*time.Minute, func(ctx context.Context) (bool, string) {
		claims, err := n.query(ctx, fmt.Sprintf(`gpu_dra_claim_device_info{claim_namespace=%q, pod!=""}`, autoscaled))
		must(t, err)
		held := map[string]bool{}
		for _, c := range claims {
			held[c.Metric["gpu_uuid"]] = true
		}
		state, err := engine.Open(n.Root, nil).State()
		must(t, err)
		for _, g := range state.GPUs {
			switch runs := len(g.Processes) > 0; {
			case busy && held[g.UUID] && !runs:
				n.inject(ctx, t, "process", g.UUID, "--pid", busyProcess, "--memory", "1024", "--load", busyLoad)
			case !busy && held[g.UUID] && runs:
				n.inject(ctx, t, "end", g.UUID, "--pid", busyProcess)
			}
		}
		pods, err := n.Client.CoreV1().Pods(autoscaled).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		must(t, err)
		hpa, err := n.Client.AutoscalingV2().HorizontalPodAutoscalers(autoscaled).Get(ctx, "inference", metav1.GetOptions{})
		must(t, err)
		return len(pods.Items) == want && int(hpa.Status.DesiredReplicas) == want,
			fmt.Sprintf("%d pods run on %d GPUs; %+v", len(pods.Items), len(held), hpa.Status)
	}))
	t.Logf("%d pods after %.0f s", want, time.Since(began).Seconds())
}

// checkAutoscaling loads the GPUs of the demo's Deployment until it has four pods, and then ends the load.
func (n *node) checkAutoscaling(ctx context.Context, t *testing.T) {
	n.installAdapter(ctx, t)
	_, err := n.Kubectl(ctx, "apply", "-f", n.demo("inference.yaml"))
	must(t, err)
	n.scaled(ctx, t, 1, false)
	n.scaled(ctx, t, 4, true)
	n.checkScaledObject(ctx, t)
	n.scaled(ctx, t, 1, false)
	_, err = n.Kubectl(ctx, "delete", "-f", n.demo("inference.yaml"))
	must(t, err)
	_, err = n.Kubectl(ctx, "delete", "apiservice", "v1beta1.custom.metrics.k8s.io")
	must(t, err)
}

// checkScaledObject compares KEDA's object with its definition, and runs its query.
func (n *node) checkScaledObject(ctx context.Context, t *testing.T) {
	definition, text := os.Getenv(kedaDefinition), readFile(t, n.demo("scaledobject.yaml"))
	if definition == "" {
		t.Fatal(kedaDefinition + " is not set: run make test-monitoring")
	}
	_, err := n.Kubectl(ctx, "apply", "--server-side", "-f", definition)
	must(t, err)
	_, err = n.Kubectl(ctx, "wait", "--for=condition=Established", "-f", definition, "--timeout=60s")
	must(t, err)
	must(t, n.apply(ctx, t, text, "--dry-run=server"))
	for _, change := range [][2]string{{"maxReplicaCount: 4", "maxReplicas: 4"}, {`threshold: "0.6"`, "threshold: 0.6"}} {
		wrong := strings.Replace(text, change[0], change[1], 1)
		if err := n.apply(ctx, t, wrong, "--dry-run=server"); wrong == text || err == nil {
			t.Errorf("a ScaledObject with %s was accepted", change[1])
		}
	}
	var scaled struct {
		Spec struct {
			Triggers []struct{ Metadata struct{ Query string } }
		}
	}
	must(t, yaml.Unmarshal([]byte(text), &scaled))
	found, err := n.query(ctx, scaled.Spec.Triggers[0].Metadata.Query)
	must(t, err)
	if len(found) != 1 || found[0].value() < 1 {
		t.Errorf("the query of the ScaledObject has %v, not the sum of busy GPUs", found)
	}
}
