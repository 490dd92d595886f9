//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipes

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/e2etest"
)

// TestMPIJob_WorkerLost_HasNewClaim also ends a job of the recipe, whose workers end with the launcher.
func TestMPIJob_WorkerLost_HasNewClaim(t *testing.T) {
	ctx := e2etest.Context(t, 8*time.Minute)
	const namespace, launcher = "recipe-mpi", "training.kubeflow.org/job-role=launcher"
	recipe := filepath.Join(cluster.Tree, "demo/recipes/mpijob.yaml")
	apply(ctx, t, recipe)
	first := members(ctx, t, namespace, 2, 4)
	for i, m := range first {
		if m.Name != fmt.Sprintf("training-worker-%d", i) {
			t.Errorf("worker %d is %s", i, m.Name)
		}
	}
	hosts, err := cluster.Client.CoreV1().ConfigMaps(namespace).Get(ctx, "training-config", metav1.GetOptions{})
	must(t, err)
	if got := hosts.Data["hostfile"]; strings.Count(got, "slots=4") != 2 {
		t.Errorf("the hostfile is %q", got)
	}
	for _, p := range pods(ctx, t, namespace, launcher) {
		view, err := cluster.Inspect(ctx, namespace, p.Name, "launcher")
		must(t, err)
		if len(view.UUIDs()) != 0 || view.Env["OMPI_MCA_orte_set_default_slots"] != "4" {
			t.Errorf("the launcher sees %v and %v", view.UUIDs(), view.Env)
		}
	}

	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "pod", first[1].Name, "--grace-period=0", "--force")
	must(t, err)
	second := members(ctx, t, namespace, 2, 4, first[1])
	if second[0].claim != first[0].claim {
		t.Error("the other worker was made again too")
	}
	suspend := func(value string) {
		t.Helper()
		_, err := cluster.Kubectl(ctx, "-n", namespace, "patch", "mpijob", "training", "--type=merge", `-p={"spec": {"runPolicy": {"suspend": `+value+`}}}`)
		must(t, err)
	}
	suspend("true")
	released(ctx, t)
	suspend("false")
	members(ctx, t, namespace, 2, 4, second...)
	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "mpijob", "training")
	must(t, err)
	released(ctx, t)

	// This launcher ends by itself, and cleanPodPolicy ends the workers. They are as written for the device plugin.
	variant(ctx, t, recipe, "training", "plugin", "args: [look, --hold]\n              securityContext: &", "args: [look]\n              securityContext: &",
		"claims:\n                  - name: gpus", "limits:\n                  nvidia.com/gpu: 2", "          resourceClaims:\n            - name: gpus\n              resourceClaimTemplateName: group-of-4\n", "")
	_, err = cluster.Kubectl(ctx, "-n", namespace, "wait", "--for=condition=Succeeded", "mpijob/plugin", "--timeout=120s")
	must(t, err)
	released(ctx, t)
	_, err = cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	must(t, err)
}
