//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipes

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/e2etest"
)

// TestLeaderWorkerSet_WorkerDeleted_GroupHasNewClaims also changes the number of groups.
func TestLeaderWorkerSet_WorkerDeleted_GroupHasNewClaims(t *testing.T) {
	ctx := e2etest.Context(t, 8*time.Minute)
	const namespace, set = "recipe-lws", "leaderworkerset/inference"
	apply(ctx, t, filepath.Join(cluster.Tree, "demo/recipes/leaderworkerset.yaml"))
	names := []string{"inference-0", "inference-0-1", "inference-1", "inference-1-1"}
	check := func(all []member) {
		t.Helper()
		for i, m := range all {
			if leader := names[i/2*2] + ".inference." + namespace; m.Name != names[i] || m.env["LWS_WORKER_INDEX"] != []string{"0", "1"}[i%2] ||
				m.env["LWS_GROUP_SIZE"] != "2" || m.env["LWS_LEADER_ADDRESS"] != leader {
				t.Errorf("pod %s sees %v, want the leader %s", m.Name, m.env, leader)
			}
			if got, ok := m.env["CUDA_VISIBLE_DEVICES"]; ok {
				t.Errorf("CUDA_VISIBLE_DEVICES in %s is %s, but its claim does not ask for it", m.Name, got)
			}
		}
	}
	before := members(ctx, t, namespace, 4, 2)
	check(before)

	_, err := cluster.Kubectl(ctx, "-n", namespace, "delete", "pod", "inference-0-1")
	must(t, err)
	after := members(ctx, t, namespace, 4, 2, before[:2]...)
	check(after)
	for i := range 2 {
		if was, is := before[2+i], after[2+i]; is.UID != was.UID || is.claim != was.claim {
			t.Errorf("%s of the other group was made again", is.Name)
		}
	}

	// No GPU is free, so the new groups get those of the old ones.
	_, err = cluster.Kubectl(ctx, "-n", namespace, "patch", set, "--type=json",
		`-p=[{"op": "replace", "path": "/spec/leaderWorkerTemplate/workerTemplate/spec/terminationGracePeriodSeconds", "value": 1}]`)
	must(t, err)
	after = members(ctx, t, namespace, 4, 2, after...)
	check(after)

	scale := func(replicas string) {
		_, err := cluster.Kubectl(ctx, "-n", namespace, "scale", set, "--replicas="+replicas)
		must(t, err)
	}
	scale("3")
	waiting(ctx, t, namespace, "leaderworkerset.sigs.k8s.io/group-index=2", 2)
	scale("1")
	one := members(ctx, t, namespace, 2, 2, after[2:]...)
	check(one)
	if !slices.EqualFunc(one, after[:2], func(a, b member) bool { return a.UID == b.UID }) {
		t.Errorf("scaling made the remaining group again")
	}
	_, err = cluster.Kubectl(ctx, "-n", namespace, "delete", set)
	must(t, err)
	released(ctx, t)
	_, err = cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	must(t, err)
}
