//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package beta

import (
	"context"
	"testing"

	"gpu-dra-driver/test/e2e/env"
)

// TestAPodWithAClaimOfItsVersion has the cluster do all of it.
func TestAPodWithAClaimOfItsVersion(t *testing.T) {
	if !usesClaims() {
		t.Skip("scheduler and kubelet of this version speak resource.k8s.io/v1 alone, which this API server does not serve")
	}
	ctx := limited(t)
	demo := env.Demo{Name: "one-gpu", Path: s.Tree + "/test/e2e/beta/testdata/one-gpu.yaml", Pods: 1}
	must(t, s.Apply(ctx, demo))
	removed := false
	t.Cleanup(func() {
		if !removed {
			must(t, s.Remove(context.WithoutCancel(ctx), demo))
		}
	})
	pods, err := s.Settled(ctx, demo)
	must(t, err)
	view, err := s.Look(ctx, demo.Namespace(), pods[0].Name, "probe")
	must(t, err)
	if len(view.GPUs()) != 1 || len(view.UUIDs()) != 1 {
		t.Errorf("the container has %v, and nvidia-smi lists %v", view.GPUs(), view.UUIDs())
	}
	ready(ctx, t, demo.Namespace(), "gpu")
	must(t, s.Remove(ctx, demo))
	removed = true
	if found := specs(ctx, t); len(found) != 0 {
		t.Errorf("CDI specs are left: %v", found)
	}
}
