//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/test/e2e/e2etest"
)

// TestJobSet_GroupOfEachPod_RankedRestartedAndReleased restarts the JobSet of the recipe, and starts a second one that has to
// wait for its GPUs and then completes.
func TestJobSet_GroupOfEachPod_RankedRestartedAndReleased(t *testing.T) {
	ctx := e2etest.Context(t, 8*time.Minute)
	const namespace, ofJob = "recipe-jobset", "jobset.sigs.k8s.io/replicatedjob-name"
	recipe := filepath.Join(cluster.Tree, "demo/recipes/jobset.yaml")
	apply(ctx, t, recipe)
	check := func(all []member, attempt string) {
		t.Helper()
		for i, name := range []string{"leader", "worker"} {
			m := all[i]
			if m.Labels[ofJob] != name || m.env["NODE_RANK"] != []string{"0", "1"}[i] || m.env["JOB_COMPLETION_INDEX"] != "0" ||
				m.Labels["jobset.sigs.k8s.io/restart-attempt"] != attempt {
				t.Errorf("pod %d of attempt %s is %s with labels %v, and sees %v", i, attempt, m.Name, m.Labels, m.env)
			}
			if got := m.env["CUDA_VISIBLE_DEVICES"]; got != strings.Join(m.gpus, ",") {
				t.Errorf("CUDA_VISIBLE_DEVICES in %s is %s, want %v", m.Name, got, m.gpus)
			}
		}
	}
	all := members(ctx, t, namespace, 2, 4)
	check(all, "0")

	// The Job of a failed pod fails, so JobSet makes both Jobs again. A pod that is deleted by force can count as complete: the Job keeps
	// it until its end is counted, and the probe ends without an error on SIGTERM.
	must(t, cluster.KillContainer(ctx, all[1].Pod, 0))
	check(members(ctx, t, namespace, 2, 4, all...), "1")

	_, err := cluster.Kubectl(ctx, "-n", namespace, "patch", "jobset", "training", "--type=json",
		`-p=[{"op": "replace", "path": "/spec/replicatedJobs/1/template/spec/template/spec/resourceClaims/0/resourceClaimTemplateName", "value": "other"}]`)
	if err == nil || !strings.Contains(err.Error(), "field is immutable") {
		t.Errorf("another claim template was not refused: %v", err)
	}

	variant := func(name string, replace ...string) {
		t.Helper()
		variant(ctx, t, recipe, "training", name, replace...)
	}
	// The second JobSet ends as soon as its pods have looked around.
	variant("evaluation", "[look, --hold]", "[look]")
	waiting(ctx, t, namespace, "jobset.sigs.k8s.io/jobset-name=evaluation", 2)
	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "jobset", "training")
	must(t, err)
	_, err = cluster.Kubectl(ctx, "-n", namespace, "wait", "--for=condition=Completed", "jobset/evaluation", "--timeout=120s")
	must(t, err)
	for _, p := range pods(ctx, t, namespace, "") {
		view, err := cluster.Inspect(ctx, namespace, p.Name, "probe")
		must(t, err)
		if got := view.UUIDs(); len(got) != 4 {
			t.Errorf("%s saw %v", p.Name, got)
		}
	}
	released(ctx, t) // The JobSet and its pods are still there.
	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "jobset", "evaluation")
	must(t, err)

	// With room for one pod of two, one runs.
	variant("half", "replicas: 1\n      template: *job", "replicas: 0\n      template: *job")
	members(ctx, t, namespace, 1, 4)
	variant("split")
	must(t, cluster.Eventually(ctx, "a pod of the JobSet to run", 2*time.Minute, func(context.Context) (bool, string) {
		of := pods(ctx, t, namespace, "jobset.sigs.k8s.io/jobset-name=split")
		running := slices.ContainsFunc(of, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		return running, fmt.Sprintf("none of %d pods runs", len(of))
	}))
	waiting(ctx, t, namespace, "jobset.sigs.k8s.io/jobset-name=split", 1)
	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "jobset", "half", "split")
	must(t, err)
	released(ctx, t)
	_, err = cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	must(t, err)
}
