//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

const (
	// evictionLabel is the label of nodes that NVIDIA's driver manager changes after the pods with claims are gone and before it
	// unloads the driver (evictKubeletPlugin in cmd/driver-manager/main.go of github.com/NVIDIA/k8s-driver-manager, v0.12.0). The
	// label of its variable NODE_LABEL_FOR_GPU_POD_EVICTION changes before it evicts them (evictAllGPUOperatorComponents).
	evictionLabel = "nvidia.com/gpu.deploy.dra-driver"
	// pluginApp is the value of the label app of the pods whose end the manager waits for then.
	pluginApp = "nvidia-dra-driver-kubelet-plugin"
)

// TestDriverUpgrade_LabelOfTheNode_PodsLetGoAndComeBack upgrades the driver in the order of its manager's
// uninstallDriver. Pods with claims are evicted (nvDrainNode), and none is left (GetGPUResourceClaimHolders). The label changes,
// and the plugin's pod is gone (evictKubeletPlugin). The driver is replaced, and the label comes back. Beyond that order, one pod ends while the plugin is away.
func TestDriverUpgrade_LabelOfTheNode_PodsLetGoAndComeBack(t *testing.T) {
	ctx := testContext(t)
	label := func(ctx context.Context, value string) {
		t.Helper()
		_, err := cluster.Kubectl(ctx, "label", "node", "--all", "--overwrite", evictionLabel+value)
		must(t, err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, cluster.Helm(ctx))
		label(ctx, "-")
		replaceDriver(ctx, t, "580.126.09")
		checkClean(ctx, t)
		checkNoDaemons(ctx, t)
	})
	label(ctx, "=true")
	must(t, cluster.Helm(ctx, "--set-json", `kubeletPlugin.nodeSelector={"`+evictionLabel+`":"true"}`, "--set", "kubeletPlugin.podLabels.app="+pluginApp))
	// The supervisor's pod is replaced by hand, as its selector has changed.
	must(t, cluster.Client.CoreV1().Pods(env.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=mps-supervisor",
	}))
	driverPods(ctx, t, "mps-supervisor", 1)
	driverPods(ctx, t, "kubelet-plugin", 1)
	awaited := func(ctx context.Context) int {
		pods, err := cluster.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + pluginApp})
		must(t, err)
		return len(pods.Items)
	}
	if awaited(ctx) != 1 {
		t.Error("the manager does not wait for the plugin's pod")
	}

	drained, late := createNamespace(ctx, t, nil), createNamespace(ctx, t, nil)
	createShare(ctx, t, drained, "share", "10Gi", 2, "", "--alloc", "5Gi")
	_, err := cluster.WaitPods(ctx, drained, 1)
	must(t, err)
	createShare(ctx, t, late, "late", "10Gi", 3, "", "--alloc", "5Gi")
	_, err = cluster.WaitPods(ctx, late, 1)
	must(t, err)
	remove := func(namespace string) {
		t.Helper()
		must(t, cluster.Client.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	gone := func(namespace string) func(context.Context) (bool, string) {
		return func(ctx context.Context) (bool, string) {
			pods, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			must(t, err)
			return len(pods.Items) == 0, fmt.Sprint(len(pods.Items), " pods")
		}
	}
	remove(drained)
	must(t, cluster.Eventually(ctx, "the drained pod is gone", 60*time.Second, gone(drained)))

	label(ctx, "=paused-for-driver-upgrade")
	must(t, cluster.Eventually(ctx, "the pods that the manager waits for are gone", 90*time.Second, func(ctx context.Context) (bool, string) {
		n := awaited(ctx)
		return n == 0, fmt.Sprint(n, " pods")
	}))
	driverPods(ctx, t, "mps-supervisor", 0)
	remove(late)
	must(t, cluster.Eventually(ctx, "nothing holds the driver", 60*time.Second, func(ctx context.Context) (bool, string) {
		// Files of the driver that processes have open or mapped, other than the test's.
		out, err := cluster.OnNode(ctx, "sh", "-c", `for p in /proc/[0-9]*; do
			if ls -l $p/fd 2>/dev/null | grep -q '`+cluster.Root+`/dev/nvidia' || grep -q libnvidia-ml $p/maps 2>/dev/null; then
				echo "${p#/proc/} $(tr '\0' ' ' <$p/cmdline)"
			fi
		done`)
		return err == nil && strings.TrimSpace(out) == "", fmt.Sprint(out, err)
	}))

	const version = "580.159.04"
	must(t, cluster.Sim(ctx, "down"))
	must(t, cluster.Sim(ctx, "up", "--profile", "hgx-h100", "--driver-version", version))
	label(ctx, "=true")
	must(t, cluster.Eventually(ctx, "GPUs with the driver "+version, 90*time.Second, func(ctx context.Context) (bool, string) {
		all, err := cluster.Devices(ctx, "gpu")
		must(t, err)
		n := 0
		for _, d := range all {
			if v := d.Attributes["driverVersionRaw"].StringValue; v != nil && *v == version {
				n++
			}
		}
		return n == 8, fmt.Sprintf("%d of %d", n, len(all))
	}))
	must(t, cluster.Eventually(ctx, "the pod that ended while the plugin was away is gone", 90*time.Second, gone(late)))
	checkClean(ctx, t)
	checkServes(ctx, t)
}
