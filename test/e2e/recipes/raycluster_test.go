//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipes

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/e2etest"
)

// TestRayCluster_WorkersWithGroups_ReplacedScaledAndSuspended looks at pods and claims, and at the command that KubeRay makes for
// Ray. There is no Ray.
func TestRayCluster_WorkersWithGroups_ReplacedScaledAndSuspended(t *testing.T) {
	ctx := e2etest.Context(t, 8*time.Minute)
	const namespace, head, workers = "recipe-ray", "ray.io/node-type=head", "ray.io/node-type=worker"
	recipe := filepath.Join(cluster.Tree, "demo/recipes/raycluster.yaml")
	apply(ctx, t, recipe)
	check := func(all []member) {
		t.Helper()
		for _, m := range all {
			if command := m.env["KUBERAY_GEN_RAY_START_CMD"]; m.Labels["ray.io/group"] != "linked" || !strings.Contains(command, "--num-gpus=2") {
				t.Errorf("%s with labels %v has the command %q", m.Name, m.Labels, command)
			}
		}
	}
	patch := func(patch string) {
		t.Helper()
		_, err := cluster.Kubectl(ctx, "-n", namespace, "patch", "raycluster", "inference", "--type=json", "-p=["+patch+"]")
		must(t, err)
	}
	first := members(ctx, t, namespace, 2, 2)
	check(first)
	for _, p := range pods(ctx, t, namespace, head) {
		view, err := cluster.Inspect(ctx, namespace, p.Name, "ray-head")
		must(t, err)
		if command := view.Env["KUBERAY_GEN_RAY_START_CMD"]; len(view.UUIDs()) != 0 || !strings.Contains(command, "--num-gpus=0") {
			t.Errorf("the head sees %v, and has the command %q", view.UUIDs(), command)
		}
	}

	_, err := cluster.Kubectl(ctx, "-n", namespace, "delete", "pod", first[0].Name)
	must(t, err)
	second := members(ctx, t, namespace, 2, 2, first[0])
	check(second)

	patch(`{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 3}`)
	check(members(ctx, t, namespace, 3, 2))
	patch(`{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 1}`)
	one := members(ctx, t, namespace, 1, 2)

	patch(`{"op": "add", "path": "/spec/suspend", "value": true}`)
	released(ctx, t)
	patch(`{"op": "replace", "path": "/spec/suspend", "value": false}`)
	check(members(ctx, t, namespace, 1, 2, one...))
	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "raycluster", "inference")
	must(t, err)
	released(ctx, t)

	// As for the device plugin, KubeRay counts the GPUs itself. It does not count those of a claim.
	for name, c := range map[string]struct {
		change [2]string
		want   bool
	}{
		"plugin": {[2]string{"claims:\n                  - name: gpus", "limits:\n                  nvidia.com/gpu: 2"}, true},
		"silent": {[2]string{"replicas: 2", "replicas: 1"}, false},
	} {
		variant(ctx, t, recipe, "inference", name, c.change[0], c.change[1], `num-gpus: "2"`, `block: "true"`)
		var command string
		must(t, cluster.Eventually(ctx, "a worker of "+name, time.Minute, func(context.Context) (bool, string) {
			all := pods(ctx, t, namespace, workers+",ray.io/cluster="+name)
			if len(all) > 0 {
				for _, e := range all[0].Spec.Containers[0].Env {
					if e.Name == "KUBERAY_GEN_RAY_START_CMD" {
						command = e.Value
					}
				}
			}
			return command != "", fmt.Sprintf("there are %d pods", len(all))
		}))
		if strings.Contains(command, "--num-gpus=2") != c.want {
			t.Errorf("the command of %s is %q", name, command)
		}
		_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "raycluster", name)
		must(t, err)
	}
	_, err = cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	must(t, err)
	released(ctx, t)
}
