// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/e2e/env"
)

// floor is one GET of the claim, one durable file and one empty RPC.
func (b *bench) floor(ctx context.Context, c *drapb.Claim) (time.Duration, error) {
	began := time.Now()
	if _, err := b.stage.Client.ResourceV1().ResourceClaims(env.ByHand).Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
		return 0, err
	}
	if err := host.New(host.Options{}).WriteDurable("bench", filepath.Join(b.dir, "floor"), make([]byte, 600), 0o600); err != nil {
		return 0, err
	}
	if _, err := b.dra.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// sample interleaves floor and Prepare of one claim, with an Unprepare in between.
func (b *bench) sample(ctx context.Context, c *drapb.Claim, n int) ([]table.Pair, error) {
	var out []table.Pair
	for range n {
		floor, err := b.floor(ctx, c)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := b.prepare(ctx, c); err != nil {
			return nil, err
		}
		out = append(out, table.Pair{Figure: time.Since(began), Floor: floor})
		if err := b.unprepare(ctx, c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// inTurn interleaves the Prepare of one claim with that of another, which is the floor, with an Unprepare in between.
func (b *bench) inTurn(ctx context.Context, figure, floor *drapb.Claim, n int) ([]table.Pair, error) {
	var out []table.Pair
	for range n {
		var took [2]time.Duration
		for i, c := range []*drapb.Claim{figure, floor} {
			began := time.Now()
			err := b.prepare(ctx, c)
			took[i] = time.Since(began)
			if err := errors.Join(err, b.unprepare(ctx, c)); err != nil {
				return nil, err
			}
		}
		out = append(out, table.Pair{Figure: took[0], Floor: took[1]})
	}
	return out, nil
}

func (b *bench) single(ctx context.Context) error {
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	claims, err := b.claims(ctx, names[:1], false)
	if err != nil {
		return err
	}
	if _, err := b.sample(ctx, claims[0], 20); err != nil { // warm-up
		return err
	}
	pairs, err := b.sample(ctx, claims[0], b.samples)
	if err != nil {
		return err
	}
	b.ratio("prepare one GPU, p50", table.Quantile(table.Figures(pairs), 0.5), table.Quantile(table.Floors(pairs), 0.5), 1.5)
	b.ratio("prepare one GPU, p99", table.Quantile(table.Figures(pairs), 0.99), table.Quantile(table.Floors(pairs), 0.99), 0)
	return b.keep("single", pairs)
}

func (b *bench) eight(ctx context.Context) error {
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	claims, err := b.claims(ctx, names, false)
	if err != nil {
		return err
	}
	var pairs []table.Pair
	// The Prepares of a round wait for the same writes, so the p99 of few rounds is one slow write of the disk.
	for range b.samples {
		floor, err := b.floor(ctx, claims[0])
		if err != nil {
			return err
		}
		took := make([]time.Duration, len(claims))
		errs := make([]error, len(claims))
		var wg sync.WaitGroup
		for i, c := range claims {
			wg.Go(func() {
				began := time.Now()
				errs[i] = b.prepare(ctx, c)
				took[i] = time.Since(began)
			})
		}
		wg.Wait()
		for i, c := range claims {
			if errs[i] != nil {
				return errs[i]
			}
			pairs = append(pairs, table.Pair{Figure: took[i], Floor: floor})
			if err := b.unprepare(ctx, c); err != nil {
				return err
			}
		}
	}
	b.ratio("8 in flight, p99", table.Quantile(table.Figures(pairs), 0.99), table.Quantile(table.Floors(pairs), 0.5), 8)
	return b.keep("eight", pairs)
}

// growth compares Prepare with many prepared claims and Prepare without any, each relative to its own floor.
func (b *bench) growth(ctx context.Context) error {
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	probe, err := b.claims(ctx, names[:1], false)
	if err != nil {
		return err
	}
	alone, err := b.sample(ctx, probe[0], b.samples)
	if err != nil {
		return err
	}
	devices := make([]string, b.prepared)
	for i := range devices {
		devices[i] = names[i%len(names)]
	}
	watchers, err := b.claims(ctx, devices, true)
	if err != nil {
		return err
	}
	for _, c := range watchers {
		if err := b.prepare(ctx, c); err != nil {
			return err
		}
	}
	beside, err := b.sample(ctx, probe[0], b.samples)
	if err != nil {
		return err
	}
	none := ratioOf(table.Quantile(table.Figures(alone), 0.5), table.Quantile(table.Floors(alone), 0.5))
	many := ratioOf(table.Quantile(table.Figures(beside), 0.5), table.Quantile(table.Floors(beside), 0.5))
	b.rows = append(b.rows, table.Row{
		Figure: fmt.Sprintf("prepare beside %d, p50 over floor", b.prepared), Value: fmt.Sprintf("%.2f", many),
		Floor: fmt.Sprintf("%.2f beside none", none), Ratio: fmt.Sprintf("%.2f", many/none), Budget: "1.10", Over: many/none > 1.1,
	})
	if err := b.keep("alone", alone); err != nil {
		return err
	}
	return b.keep("beside", beside)
}

func (b *bench) ratio(figure string, value, floor time.Duration, budget float64) {
	r := table.Row{Figure: figure, Value: table.Millis(value), Floor: table.Millis(floor), Ratio: fmt.Sprintf("%.2f", ratioOf(value, floor)), Budget: "-"}
	if budget > 0 {
		r.Budget, r.Over = fmt.Sprintf("%.2f", budget), ratioOf(value, floor) > budget
	}
	b.rows = append(b.rows, r)
}

func (b *bench) keep(name string, pairs []table.Pair) error { return table.Keep(b.raw, name, pairs) }

func ratioOf(a, b time.Duration) float64 { return float64(a) / float64(b) }
