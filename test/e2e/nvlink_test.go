//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/sim/engine"
)

// checkOneNVLinkGroup checks the number of GPUs of a demo's pods, and that they belong to one NVLink group.
func checkOneNVLinkGroup(want int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		checkDevices(want)(ctx, t, pods)
		published, err := cluster.Devices(ctx, "gpu")
		must(t, err)
		groups := map[string]bool{}
		for _, p := range pods {
			for _, devices := range devicesByClaim(ctx, t, p) {
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

// checkTopologyEnv checks from inside the container that CUDA has the UUID of each GPU, and NCCL's file has each GPU.
func checkTopologyEnv(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	checkDevices(8)(ctx, t, pods)
	view, err := cluster.Inspect(ctx, pods[0].Namespace, pods[0].Name, "probe")
	must(t, err)
	got := strings.Split(view.Env["CUDA_VISIBLE_DEVICES"], ",")
	slices.Sort(got)
	seen := view.UUIDs()
	slices.Sort(seen)
	if diff := cmp.Diff(seen, got); diff != "" {
		t.Errorf("CUDA_VISIBLE_DEVICES (-nvidia-smi +environment):\n%s", diff)
	}
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	for _, g := range state.GPUs {
		if !strings.Contains(view.NCCLTopology, `busid="`+g.Address+`"`) {
			t.Errorf("the file for NCCL lacks the GPU at %s:\n%s", g.Address, view.NCCLTopology)
		}
	}
	if n := strings.Count(view.NCCLTopology, `count="18" tclass="0x068000"`); n != 8 {
		t.Errorf("the file for NCCL has links to switches of %d GPUs:\n%s", n, view.NCCLTopology)
	}
}
