//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func node(ctx context.Context, t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := cluster.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	return n
}

func TestNodeLabels_PodSelectsThem_RunsThere(t *testing.T) {
	ctx := testContext(t)
	for name, want := range map[string][3]string{"onenode": {"NVIDIA-H100-80GB-HBM3", "8", "81559"}, "onenode-2": {"NVIDIA-L40S", "4", "46068"}} {
		eventually(ctx, t, "labels of "+name, func(ctx context.Context) (bool, string) {
			l := node(ctx, t, name).Labels
			got := [3]string{l["nvidia.com/gpu.product"], l["nvidia.com/gpu.count"], l["nvidia.com/gpu.memory"]}
			return got == want, fmt.Sprint(got)
		})
	}
	out, err := cluster.Kubectl(ctx, "apply", "-f", cluster.Tree+"/test/e2e/nodes/testdata/plugin-pods.yaml")
	must(t, err)
	t.Cleanup(func() {
		_, err := cluster.Kubectl(context.WithoutCancel(ctx), "delete", "-f", cluster.Tree+"/test/e2e/nodes/testdata/plugin-pods.yaml", "--wait=true")
		must(t, err)
	})
	for pod, where := range map[string]string{"l40s": "onenode-2", "large": "onenode", "small": "onenode-2", "by-class": "onenode-2", "slice": "onenode"} {
		eventually(ctx, t, pod+" to run", func(ctx context.Context) (bool, string) {
			p, err := cluster.Client.CoreV1().Pods("plugin-pods").Get(ctx, pod, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return p.Status.Phase == corev1.PodRunning && p.Spec.NodeName == where, string(p.Status.Phase) + " on " + p.Spec.NodeName + out
		})
		view, err := cluster.Inspect(ctx, "plugin-pods", pod, "probe")
		must(t, err)
		if got := view.GPUs(); len(got) != 1 {
			t.Errorf("%s sees %v", pod, got)
		}
	}
}

func TestNodeLabels_WrittenByOthers_Kept(t *testing.T) {
	ctx := testContext(t)
	nodes := cluster.Client.CoreV1().Nodes()
	patch := func(labels string) {
		t.Helper()
		_, err := nodes.Patch(ctx, "onenode-2", types.MergePatchType, []byte(`{"metadata":{"labels":`+labels+`}}`), metav1.PatchOptions{})
		must(t, err)
	}
	has := func(what string, ok func(map[string]string) bool) {
		t.Helper()
		eventually(ctx, t, what, func(ctx context.Context) (bool, string) {
			l := node(ctx, t, "onenode-2").Labels
			return ok(l), fmt.Sprint(l)
		})
	}
	has("the labels", func(l map[string]string) bool { return l["nvidia.com/gpu.count"] == "4" })
	patch(`{"nvidia.com/gpu.count":"3","nvidia.com/gpu.family":null}`)
	has("the label that is free", func(l map[string]string) bool { return l["nvidia.com/gpu.family"] == "ada-lovelace" })
	has("the other's label", func(l map[string]string) bool { return l["nvidia.com/gpu.count"] == "3" })
	// The node loses its GPUs, and so only the controller's labels, except for the one that selects the plugin's nodes.
	must(t, cluster.SimOn(ctx, 2, "inject", "unload"))
	t.Cleanup(func() { _ = cluster.SimOn(context.WithoutCancel(ctx), 2, "inject", "load") })
	has("only the other's label", func(l map[string]string) bool {
		return l["nvidia.com/gpu.count"] == "3" && l["nvidia.com/gpu.family"] == "" && l["nvidia.com/gpu.present"] == "true"
	})
	patch(`{"nvidia.com/gpu.count":null}`)
	must(t, cluster.SimOn(ctx, 2, "inject", "load"))
	must(t, cluster.WaitPublished(ctx, 12))
	has("the labels again", func(l map[string]string) bool { return l["nvidia.com/gpu.count"] == "4" })
}
