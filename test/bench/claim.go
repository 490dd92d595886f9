// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// claims creates allocated claims, each for the device of its index.
func (b *bench) claims(ctx context.Context, devices []string, admin bool) ([]*drapb.Claim, error) {
	return b.stage.AllocatedClaims(ctx, b.node+"/gpu", devices, admin)
}

// names lists the published GPUs.
func (b *bench) names(ctx context.Context) ([]string, error) {
	devices, err := b.stage.Devices(ctx, "gpu")
	var out []string
	for _, d := range devices {
		out = append(out, d.Name)
	}
	return out, err
}
