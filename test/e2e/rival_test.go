//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/sim/engine"
)

// TestADevicePluginOnTheSameNode has one come to a node and go. What it serves is withheld meanwhile, and said to be.
func TestADevicePluginOnTheSameNode(t *testing.T) {
	ctx := limited(t)
	state, err := engine.Open(s.Root, nil).State()
	must(t, err)
	stop := onNode(ctx, t, "./deviceplugin", state.GPUs[6].UUID+"::0", state.GPUs[6].UUID+"::1", state.GPUs[7].UUID)
	must(t, s.WaitPublished(ctx, 6))
	nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	event(ctx, t, "default", nodes.Items[0].Name, state.GPUs[7].Address, "a device plugin serves it as nvidia.com/gpu")
	for _, p := range play(ctx, t, "one-gpu") {
		inside(ctx, t, p)
	}
	stop()
	must(t, s.WaitPublished(ctx, 8))
}
