// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/e2e/env"
)

// faultRounds is the number of faults of each GPU.
const faultRounds = 2

// faults measures the time from the driver's report of a fault, with its XID, to the taint in the API server. It has a
// claim of each GPU, because the plugin waits for XIDs of those GPUs only.
func (b *bench) faults(ctx context.Context) (err error) {
	names, err := b.names(ctx)
	if err != nil {
		return err
	}
	claims, err := b.claims(ctx, names, false)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if err := b.prepare(ctx, c); err != nil {
			return err
		}
	}
	defer func() {
		for _, c := range claims {
			err = errors.Join(err, b.unprepare(ctx, c))
		}
	}()
	var took []time.Duration
	for range faultRounds {
		for _, name := range names {
			// The plugin opens the event set, and polls at most once a second after an XID.
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(1500 * time.Millisecond):
			}
			began := time.Now()
			if err := b.stage.Sim(ctx, "inject", "recovery", "reset", address(name)); err != nil {
				return err
			}
			if err := b.untilTainted(ctx, []string{name}, true); err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
		for _, name := range names {
			if err := b.stage.Sim(ctx, "inject", "recovery", "none", address(name)); err != nil {
				return err
			}
		}
		if err := b.untilTainted(ctx, names, false); err != nil {
			return err
		}
	}
	slowest := slices.Max(took)
	b.rows = append(b.rows, table.Plain(fmt.Sprintf("fault to taint, slowest of %d", len(took)), table.Millis(slowest), "1000 ms", slowest > time.Second))
	return nil
}

// address returns the PCI address in the name of a whole GPU, gpu-0000-1b-00-0.
func address(name string) string {
	p := strings.Split(name, "-")
	return fmt.Sprintf("%s:%s:%s.%s", p[1], p[2], p[3], p[4])
}

// untilTainted waits until all named devices have a taint, or none has.
func (b *bench) untilTainted(ctx context.Context, names []string, want bool) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	changes, err := b.stage.Client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver})
	if err != nil {
		return err
	}
	defer changes.Stop()
	wrong := map[string]bool{}
	for _, name := range names {
		wrong[name] = true
	}
	for len(wrong) > 0 {
		var change watch.Event
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for taints of %s: %w", strings.Join(names, ", "), ctx.Err())
		case change = <-changes.ResultChan():
		}
		slice, ok := change.Object.(*resourceapi.ResourceSlice)
		if !ok {
			return fmt.Errorf("the watch of slices ended with %v", change.Object)
		}
		for _, d := range slice.Spec.Devices {
			if !slices.Contains(names, d.Name) {
				continue
			}
			if delete(wrong, d.Name); len(d.Taints) > 0 != want {
				wrong[d.Name] = true
			}
		}
	}
	return nil
}
