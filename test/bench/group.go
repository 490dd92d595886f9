// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/bench/table"
)

// group compares the Prepare of a group of eight GPUs with that of one GPU.
func (b *bench) group(ctx context.Context) error {
	devices, err := b.stage.Devices(ctx, string(gpu.KindGroup))
	if err != nil {
		return err
	}
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	two := []string{"", names[0]}
	for _, d := range devices {
		if strings.HasPrefix(d.Name, "nvlink-8-") {
			two[0] = d.Name
		}
	}
	if two[0] == "" {
		return fmt.Errorf("no group of eight among %d", len(devices))
	}
	claims, err := b.claims(ctx, two, false)
	if err != nil {
		return err
	}
	pairs, err := b.inTurn(ctx, claims[0], claims[1], b.samples)
	if err != nil {
		return err
	}
	pairs = pairs[min(20, len(pairs)-1):] // warm-up
	b.ratio("prepare a group of 8, p50, over one GPU", table.Quantile(table.Figures(pairs), 0.5), table.Quantile(table.Floors(pairs), 0.5), 1.5)
	return b.keep("group", pairs)
}
