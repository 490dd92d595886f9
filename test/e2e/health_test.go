//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/health"
)

// checkGPUFault checks a fault of a pod's GPU: its taints, the pod's Event, and the end of the taints after a reset.
func checkGPUFault(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	pod := pods[0]
	devices := podDevices(ctx, t, pod)
	if len(devices) != 1 {
		t.Fatalf("the pod has %v", devices)
	}
	address := addressOf(t, devices[0])
	tainted := func(ctx context.Context) (out map[string]int) {
		out = map[string]int{}
		for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup} {
			all, err := cluster.Devices(ctx, string(kind))
			must(t, err)
			for _, d := range all {
				for _, taint := range d.Taints {
					if taint.Value == health.Reset && (kind == gpu.KindGroup || strings.HasPrefix(d.Name, devices[0])) {
						out[string(kind)]++
					} else {
						t.Errorf("%s has the taint %s", d.Name, taint.Value)
					}
				}
			}
		}
		return out
	}
	wait := func(what string, ok func(map[string]int) bool) {
		t.Helper()
		must(t, cluster.Eventually(ctx, what, 90*time.Second, func(ctx context.Context) (bool, string) {
			now := tainted(ctx)
			return ok(now), fmt.Sprint(now)
		}))
	}
	must(t, cluster.Sim(ctx, "inject", "recovery", "reset", address))
	t.Cleanup(func() { must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "recovery", "none", address)) })
	// The GPU is in a pair, a group of four and the group of eight.
	wait("taints", func(n map[string]int) bool { return n["gpu"] == 1 && n["mig"] > 10 && n["nvlink-group"] == 3 })
	waitEvent(ctx, t, pod.Namespace, pod.Name, devices[0], "the driver asks for a reset of the GPU", "nvidia-smi -r")
	plugin := pluginPods(ctx, t, 1)[0]
	must(t, cluster.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the pod to end", 60*time.Second, func(ctx context.Context) (bool, string) {
		_, err := cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err != nil, "it is there"
	}))
	out, err := cluster.Run(ctx, filepath.Join(cluster.Root, "usr/bin/nvidia-smi"), "-r", "-i", address)
	if must(t, err); !strings.Contains(out, "successfully reset") {
		t.Errorf("nvidia-smi -r: %s", out)
	}
	wait("no taints", func(n map[string]int) bool { return len(n) == 0 })
	if now := pluginPods(ctx, t, 1)[0]; now.UID != plugin.UID || now.Status.ContainerStatuses[0].RestartCount != plugin.Status.ContainerStatuses[0].RestartCount {
		t.Error("the plugin restarted")
	}
}
