//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package beta

import (
	"context"
	"testing"

	"gpu-dra-driver/test/e2e/env"
)

// TestPod_ClaimOfItsVersion_HasGPU uses the cluster's own scheduler and kubelet.
func TestPod_ClaimOfItsVersion_HasGPU(t *testing.T) {
	if !usesClaims() {
		t.Skip("scheduler and kubelet of this version speak resource.k8s.io/v1 alone, which this API server does not serve")
	}
	ctx := testContext(t)
	demo := env.Demo{Name: "one-gpu", Path: cluster.Tree + "/test/e2e/beta/testdata/one-gpu.yaml", Pods: 1}
	must(t, cluster.Apply(ctx, demo))
	removed := false
	t.Cleanup(func() {
		if !removed {
			must(t, cluster.Remove(context.WithoutCancel(ctx), demo))
		}
	})
	pods, err := cluster.WaitSettled(ctx, demo)
	must(t, err)
	view, err := cluster.Inspect(ctx, demo.Namespace(), pods[0].Name, "probe")
	must(t, err)
	if len(view.GPUs()) != 1 || len(view.UUIDs()) != 1 {
		t.Errorf("the container has %v, and nvidia-smi lists %v", view.GPUs(), view.UUIDs())
	}
	waitPrepared(ctx, t, demo.Namespace(), "gpu")
	must(t, cluster.Remove(ctx, demo))
	removed = true
	if found := cdiSpecs(ctx, t); len(found) != 0 {
		t.Errorf("CDI specs are left: %v", found)
	}
}
