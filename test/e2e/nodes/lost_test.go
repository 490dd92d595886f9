//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

// TestSpotNode_DrainedLostAndDeleted_ClaimsMovedAndReleased takes the second node from the Deployment of demo/recipes/spot.yaml in three
// ways. Each time its pods run on the first node with new claims, and nothing of the old ones is left.
func TestSpotNode_DrainedLostAndDeleted_ClaimsMovedAndReleased(t *testing.T) {
	ctx := e2etest.Context(t, 15*time.Minute)
	const spot, other, namespace = "onenode-2", "onenode", "recipe-spot"
	manifest := filepath.Join(cluster.Tree, "demo/recipes/spot.yaml")
	kubectl := func(args ...string) {
		t.Helper()
		_, err := cluster.Kubectl(ctx, args...)
		must(t, err)
	}
	kubelet := func(verb string) {
		t.Helper()
		must(t, cluster.Node(ctx, verb, "--node", "2", "kubelet"))
	}
	kubectl("label", "node", spot, "karpenter.sh/capacity-type=spot")
	kubectl("apply", "-f", manifest)
	t.Cleanup(func() {
		ctx = context.WithoutCancel(ctx)
		kubelet("start")
		_, _ = cluster.Kubectl(ctx, "taint", "node", spot, "node.kubernetes.io/out-of-service-")
		_, _ = cluster.Kubectl(ctx, "uncordon", spot)
		_, _ = cluster.Kubectl(ctx, "label", "node", spot, "karpenter.sh/capacity-type-")
		kubectl("delete", "-f", manifest, "--wait=false")
		must(t, cluster.WaitNamespaceGone(ctx, namespace))
		must(t, cluster.WaitPublished(ctx, 12))
	})

	// running waits until both pods of the Deployment run on a node, and the claims of others are gone. It returns the claims in use.
	running := func(node string) []types.UID {
		t.Helper()
		var pods []corev1.Pod
		var claims []types.UID
		must(t, cluster.Eventually(ctx, "two pods on "+node, 4*time.Minute, func(ctx context.Context) (bool, string) {
			list, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			must(t, err)
			all, err := cluster.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
			must(t, err)
			pods, claims = list.Items, nil
			for _, c := range all.Items {
				claims = append(claims, c.UID)
			}
			for _, p := range pods {
				if p.Spec.NodeName != node || p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
					return false, fmt.Sprintf("%s on %s is %s, deleted %v", p.Name, p.Spec.NodeName, p.Status.Phase, p.DeletionTimestamp)
				}
			}
			return len(pods) == 2 && len(claims) == 2, fmt.Sprintf("%d pods and %d claims", len(pods), len(claims))
		}))
		seen := map[string]bool{}
		for _, p := range pods {
			view, err := cluster.Inspect(ctx, namespace, p.Name, "probe")
			must(t, err)
			if got := view.UUIDs(); len(got) != 1 || seen[got[0]] {
				t.Errorf("%s on %s sees %v; before it %v", p.Name, node, got, seen)
			} else {
				seen[got[0]] = true
			}
		}
		return claims
	}
	// prepared waits until a node has the CDI specs of these claims and no others. Of pods that went while the kubelet was silent, it
	// unprepares the claims once a minute.
	prepared := func(number string, claims ...types.UID) {
		t.Helper()
		must(t, cluster.Eventually(ctx, "CDI specs on node "+number, 2*time.Minute, func(ctx context.Context) (bool, string) {
			out, err := cluster.Run(ctx, cluster.Onenode, "exec", "--dir", cluster.Dir, "--node", number, "--",
				"find", "/var/run/cdi", "-name", "k8s."+env.Driver+"-claim_*.json")
			must(t, err)
			specs := strings.Fields(out)
			ok := len(specs) == len(claims) && !slices.ContainsFunc(claims, func(c types.UID) bool { return !strings.Contains(out, string(c)) })
			return ok, fmt.Sprintf("it has %v, want %v", specs, claims)
		}))
	}
	// back moves the pods to the spot node again.
	back := func(from []types.UID) []types.UID {
		t.Helper()
		must(t, cluster.WaitPublished(ctx, 12))
		kubectl("-n", namespace, "delete", "pods", "--all", "--wait=false")
		on := running(spot)
		if slices.ContainsFunc(on, func(c types.UID) bool { return slices.Contains(from, c) }) {
			t.Errorf("claims of %s, %v, are in use on %s", other, from, spot)
		}
		prepared("2", on...)
		prepared("1")
		return on
	}
	prepared("2", running(spot)...)

	// The notice of a spot node: its handler, or Karpenter, drains the node.
	kubectl("drain", spot, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
	moved := running(other)
	prepared("1", moved...)
	prepared("2")
	kubectl("uncordon", spot)
	back(moved)

	// The node is lost without notice: its kubelet is silent. An administrator says that it is out of service.
	kubelet("stop")
	ready := func(want corev1.ConditionStatus) {
		t.Helper()
		must(t, cluster.Eventually(ctx, "node Ready "+string(want), 2*time.Minute, func(ctx context.Context) (bool, string) {
			n, err := cluster.Client.CoreV1().Nodes().Get(ctx, spot, metav1.GetOptions{})
			if err != nil {
				return false, err.Error() // A node that was deleted is not yet back.
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					return c.Status == want, string(c.Status)
				}
			}
			return false, "no condition"
		}))
	}
	ready(corev1.ConditionUnknown)
	kubectl("taint", "node", spot, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	moved = running(other)
	prepared("1", moved...)
	// It comes back with the containers of before, which end.
	kubelet("start")
	ready(corev1.ConditionTrue)
	kubectl("taint", "node", spot, "node.kubernetes.io/out-of-service-")
	prepared("2")
	back(moved)

	// The cloud deletes the node, and later one of the same name joins.
	kubelet("stop")
	kubectl("delete", "node", spot)
	moved = running(other)
	prepared("1", moved...)
	// The plugin runs on without a kubelet. It creates no slices for the garbage collector to delete.
	of := metav1.ListOptions{FieldSelector: "spec.nodeName=" + spot}
	var version string
	eventually(ctx, t, "the slices of the node to go", func(ctx context.Context) (bool, string) {
		list, err := cluster.Client.ResourceV1().ResourceSlices().List(ctx, of)
		must(t, err)
		version = list.ResourceVersion
		return len(list.Items) == 0, fmt.Sprintf("%d are left", len(list.Items))
	})
	of.ResourceVersion, of.TimeoutSeconds = version, new(int64(10))
	watch, err := cluster.Client.ResourceV1().ResourceSlices().Watch(ctx, of)
	must(t, err)
	for event := range watch.ResultChan() {
		t.Errorf("after the slices have gone, there is %s %+v", event.Type, event.Object)
	}
	kubelet("start")
	ready(corev1.ConditionTrue)
	kubectl("label", "node", spot, "karpenter.sh/capacity-type=spot", env.HardwareLabel)
	prepared("2")
	back(moved)
}
