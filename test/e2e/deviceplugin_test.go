//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

// untilInputEnds runs a program until the input of the shell ends.
const untilInputEnds = `"$@" & cat; kill $!; wait $!`

// TestDevicePlugin_ServesGPUs_TheyAreWithheld starts and stops NVIDIA's device plugin, which has two of the GPUs and
// offers each twice. The driver withholds them meanwhile, with an Event.
func TestDevicePlugin_ServesGPUs_TheyAreWithheld(t *testing.T) {
	ctx := testContext(t)
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	out, err := cluster.Run(ctx, "hack/tool.sh", "--path", "nvidia-device-plugin")
	must(t, err)
	words := strings.Fields(out) // The path is the last one, after messages of a build.
	settings := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(settings, []byte("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"), 0o600))
	stop := startProgramOnNode(ctx, t, "env", "GPUSIM_VISIBLE="+state.GPUs[6].UUID+","+state.GPUs[7].UUID, "sh", "-c", untilInputEnds, "sh",
		words[len(words)-1], "--driver-root-ctr-path", cluster.Root, "--device-discovery-strategy", "nvml", "--config-file", settings)
	must(t, cluster.WaitPublished(ctx, 6))
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	waitEvent(ctx, t, "default", nodes.Items[0].Name, state.GPUs[7].Address, "a device plugin serves it as nvidia.com/gpu")
	for _, p := range runDemo(ctx, t, "one-gpu") {
		checkPod(ctx, t, p)
	}
	stop()
	restart := func() {
		t.Helper()
		for _, p := range pluginPods(ctx, t, 1) {
			must(t, cluster.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
		}
		pluginPods(ctx, t, 1)
	}
	// The GPUs stay withheld for five minutes, because a device plugin that restarts looks the same. So they do if the kubelet
	// and the driver's plugin start anew, and the kubelet lists no device plugin. Without slices the new process publishes.
	slices := cluster.Client.ResourceV1().ResourceSlices()
	must(t, cluster.Node(ctx, "restart", "kubelet"))
	must(t, slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver}))
	restart()
	must(t, cluster.WaitPublished(ctx, 6))
	// Without the records of that time there is nothing to wait for.
	_, err = cluster.OnNode(ctx, "rm", "-r", "/var/lib/kubelet/plugins/"+env.Driver+"/state/gpus/device-plugin")
	must(t, err)
	restart()
	must(t, cluster.WaitPublished(ctx, 8))
}
