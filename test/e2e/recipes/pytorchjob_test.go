//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipes

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

// TestPyTorchJob_WorkerLost_HasNewClaim also suspends the job of the recipe, and completes a second one that has to wait for its GPUs.
func TestPyTorchJob_WorkerLost_HasNewClaim(t *testing.T) {
	ctx := e2etest.Context(t, 8*time.Minute)
	const namespace, ofJob = "recipe-pytorch", "training.kubeflow.org/job-name="
	recipe := filepath.Join(cluster.Tree, "demo/recipes/pytorchjob.yaml")
	apply(ctx, t, recipe)
	check := func(all []member) {
		t.Helper()
		for i, name := range []string{"training-master-0", "training-worker-0"} {
			m := all[i]
			rank := []string{"0", "1"}[i]
			want := map[string]string{
				"RANK": rank, "PET_NODE_RANK": rank, "WORLD_SIZE": "8", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "4",
				"MASTER_ADDR": "training-master-0", "CUDA_VISIBLE_DEVICES": strings.Join(m.gpus, ","),
			}
			for variable, value := range want {
				if m.Name != name || m.env[variable] != value {
					t.Errorf("%s in %s is %q, want %q in %s", variable, m.Name, m.env[variable], value, name)
				}
			}
		}
	}
	patch := func(kind, patch string) error {
		_, err := cluster.Kubectl(ctx, "-n", namespace, "patch", "pytorchjob", "training", "--type="+kind, "-p="+patch)
		return err
	}
	first := members(ctx, t, namespace, 2, 4)
	check(first)

	// Only the lost pod is made again.
	_, err := cluster.Kubectl(ctx, "-n", namespace, "delete", "pod", first[1].Name, "--grace-period=0", "--force")
	must(t, err)
	second := members(ctx, t, namespace, 2, 4, first[1])
	check(second)
	if second[0].UID != first[0].UID || second[0].claim != first[0].claim {
		t.Error("the master was made again too")
	}

	// A suspended job has no claims. Kueue suspends jobs that wait for a quota.
	must(t, patch("merge", `{"spec": {"runPolicy": {"suspend": true}}}`))
	released(ctx, t)
	must(t, patch("merge", `{"spec": {"runPolicy": {"suspend": false}}}`))
	check(members(ctx, t, namespace, 2, 4, second...))

	if err := patch("json", `[{"op": "replace", "path": "/spec/pytorchReplicaSpecs/Worker/template/spec/containers/0/name", "value": "probe"}]`); err == nil ||
		!strings.Contains(err.Error(), "must have at least one container with name pytorch") {
		t.Errorf("a container of another name was not refused: %v", err)
	}

	// The second job ends as soon as its pods have looked around. The pods are still there.
	variant(ctx, t, recipe, "training", "evaluation", "[look, --hold]", "[look]")
	waiting(ctx, t, namespace, ofJob+"evaluation", 2)
	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", "pytorchjob", "training")
	must(t, err)
	_, err = cluster.Kubectl(ctx, "-n", namespace, "wait", "--for=condition=Succeeded", "pytorchjob/evaluation", "--timeout=120s")
	must(t, err)
	released(ctx, t)
	for _, p := range pods(ctx, t, namespace, ofJob+"evaluation") {
		view, err := cluster.Inspect(ctx, namespace, p.Name, "pytorch")
		must(t, err)
		if got := view.UUIDs(); len(got) != 4 {
			t.Errorf("%s saw %v", p.Name, got)
		}
	}
	_, err = cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	must(t, err)
}

// TestPyTorchJob_AsForDevicePlugin_EachPodHasAGPU runs a job that names no claim.
func TestPyTorchJob_AsForDevicePlugin_EachPodHasAGPU(t *testing.T) {
	ctx := e2etest.Context(t, 4*time.Minute)
	const namespace = "recipe-pytorch-plugin"
	apply(ctx, t, filepath.Join(cluster.Tree, "demo/recipes/pytorchjob-plugin.yaml"))
	running, err := cluster.WaitPods(ctx, namespace, 2)
	must(t, err)
	users := map[string]string{}
	for i, p := range running {
		claims, err := cluster.Claims(ctx, p)
		must(t, err)
		if len(claims) != 1 || len(env.Results(claims[0])) != 1 {
			t.Fatalf("claims of %s: %+v", p.Name, claims)
		}
		view, err := cluster.Inspect(ctx, namespace, p.Name, "pytorch")
		must(t, err)
		got := view.UUIDs()
		if len(got) != 1 || users[got[0]] != "" {
			t.Fatalf("%s sees %v; the other pod sees %v", p.Name, got, users)
		}
		users[got[0]] = p.Name
		if rank := []string{"0", "1"}[i]; view.Env["RANK"] != rank || view.Env["WORLD_SIZE"] != "2" {
			t.Errorf("%s sees %v, want rank %s", p.Name, view.Env, rank)
		}
	}
	_, err = cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	must(t, err)
	released(ctx, t)
}
