//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/sim/engine"
)

// TestDevicePlugin_ServesGPUs_TheyAreWithheld starts and stops a device plugin. The driver withholds its GPUs
// meanwhile, with an Event.
func TestDevicePlugin_ServesGPUs_TheyAreWithheld(t *testing.T) {
	ctx := testContext(t)
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	stop := startOnNode(ctx, t, "./deviceplugin", state.GPUs[6].UUID+"::0", state.GPUs[6].UUID+"::1", state.GPUs[7].UUID)
	must(t, cluster.WaitPublished(ctx, 6))
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	waitEvent(ctx, t, "default", nodes.Items[0].Name, state.GPUs[7].Address, "a device plugin serves it as nvidia.com/gpu")
	for _, p := range runDemo(ctx, t, "one-gpu") {
		checkPod(ctx, t, p)
	}
	stop()
	must(t, cluster.WaitPublished(ctx, 8))
}
