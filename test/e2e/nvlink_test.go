//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// onOneIsland checks how many GPUs a demo's pods hold, and that they are of one NVLink group.
func onOneIsland(want int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		total(want)(ctx, t, pods)
		published, err := s.Devices(ctx, "gpu")
		must(t, err)
		groups := map[string]bool{}
		for _, p := range pods {
			for _, devices := range exclusive(ctx, t, p) {
				for _, name := range devices {
					for _, d := range published {
						if group := d.Attributes["nvlinkGroup"].StringValue; d.Name == name && group != nil {
							groups[*group] = true
						}
					}
				}
			}
		}
		if len(groups) != 1 {
			t.Errorf("the GPUs are of NVLink groups %v", groups)
		}
	}
}
