// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/test/stage"
)

// floor is one GET of the claim, one durable file and one RPC that does nothing.
func (b *bench) floor(ctx context.Context, c *drapb.Claim) (time.Duration, error) {
	began := time.Now()
	if _, err := b.stage.Client.ResourceV1().ResourceClaims(stage.ByHand).Get(ctx, c.Name, metav1.GetOptions{}); err != nil {
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

// pair is one sample of the figure beside one of the floor.
type pair struct{ figure, floor time.Duration }

// sample interleaves floor and Prepare of one claim, which is unprepared in between.
func (b *bench) sample(ctx context.Context, c *drapb.Claim, n int) ([]pair, error) {
	var out []pair
	for range n {
		floor, err := b.floor(ctx, c)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := b.prepare(ctx, c); err != nil {
			return nil, err
		}
		out = append(out, pair{time.Since(began), floor})
		if err := b.unprepare(ctx, c); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// inTurn interleaves the Prepare of one claim with that of another, which is the floor; each is unprepared in between.
func (b *bench) inTurn(ctx context.Context, figure, floor *drapb.Claim, n int) ([]pair, error) {
	var out []pair
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
		out = append(out, pair{took[0], took[1]})
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
	b.ratio("prepare one GPU, p50", quantile(figures(pairs), 0.5), quantile(floors(pairs), 0.5), 1.5)
	b.ratio("prepare one GPU, p99", quantile(figures(pairs), 0.99), quantile(floors(pairs), 0.99), 0)
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
	var pairs []pair
	for range max(1, b.samples/4) {
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
			pairs = append(pairs, pair{took[i], floor})
			if err := b.unprepare(ctx, c); err != nil {
				return err
			}
		}
	}
	b.ratio("8 in flight, p99", quantile(figures(pairs), 0.99), quantile(floors(pairs), 0.5), 8)
	return b.keep("eight", pairs)
}

// growth compares Prepare beside many prepared claims with Prepare beside none, each over its own floor.
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
	none := ratioOf(quantile(figures(alone), 0.5), quantile(floors(alone), 0.5))
	many := ratioOf(quantile(figures(beside), 0.5), quantile(floors(beside), 0.5))
	b.rows = append(b.rows, row{
		figure: fmt.Sprintf("prepare beside %d, p50 over floor", b.prepared), value: fmt.Sprintf("%.2f", many),
		floor: fmt.Sprintf("%.2f beside none", none), ratio: fmt.Sprintf("%.2f", many/none), budget: "1.10", over: many/none > 1.1,
	})
	if err := b.keep("alone", alone); err != nil {
		return err
	}
	return b.keep("beside", beside)
}

func (b *bench) ratio(figure string, value, floor time.Duration, budget float64) {
	r := row{figure: figure, value: ms(value), floor: ms(floor), ratio: fmt.Sprintf("%.2f", ratioOf(value, floor)), budget: "-"}
	if budget > 0 {
		r.budget, r.over = fmt.Sprintf("%.2f", budget), ratioOf(value, floor) > budget
	}
	b.rows = append(b.rows, r)
}

func (b *bench) keep(name string, pairs []pair) error {
	if b.raw == "" {
		return nil
	}
	var text strings.Builder
	text.WriteString("figure_us,floor_us\n")
	for _, p := range pairs {
		fmt.Fprintf(&text, "%d,%d\n", p.figure.Microseconds(), p.floor.Microseconds())
	}
	if err := os.MkdirAll(b.raw, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.raw, name+".csv"), []byte(text.String()), 0o644)
}

func figures(pairs []pair) []time.Duration {
	return column(pairs, func(p pair) time.Duration { return p.figure })
}
func floors(pairs []pair) []time.Duration {
	return column(pairs, func(p pair) time.Duration { return p.floor })
}

func column(pairs []pair, of func(pair) time.Duration) []time.Duration {
	out := make([]time.Duration, len(pairs))
	for i, p := range pairs {
		out[i] = of(p)
	}
	slices.Sort(out)
	return out
}

// quantile reads a sorted list.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func ratioOf(a, b time.Duration) float64 { return float64(a) / float64(b) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
