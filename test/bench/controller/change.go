// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/fleetserver"
)

// collected is the time for which the controller collects changes before it handles them.
const collected = 50 * time.Millisecond

// changes replaces the GPUs of one node repeatedly, and measures the time to the node's label and the model's class.
// The floor is an empty request to the controller; for the class also the collection time.
func (b *bench) changes(ctx context.Context, s *fleetserver.Server) error {
	defer b.profileDuring(ctx, "changes")()
	a := newAsker(s.Authority())
	defer a.client.CloseIdleConnections()
	if _, err := a.ask(ctx, "/", nil); err != nil { // Opens the connection.
		return err
	}
	node := b.cut + b.whole - 1
	var labels, classes []table.Pair
	pace := time.NewTicker(250 * time.Millisecond) // The effects of a change end before the next.
	defer pace.Stop()
	for i := range b.updates {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pace.C:
		}
		product := fmt.Sprintf("Bench G%03d", i)
		first := len(s.Writes(0))
		began := s.ChangeNode(node, wholeProfile, 0, func(slice *resourceapi.ResourceSlice) {
			for _, d := range slice.Spec.Devices {
				if d.Attributes["productName"].StringValue != nil {
					d.Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: &product}
				}
			}
		})
		var floors [2]time.Duration
		floor := make(chan error, 1)
		go func() {
			_, err := a.ask(ctx, "/", nil)
			floors[0] = time.Since(began)
			late := time.Now()
			err = errors.Join(err, wait(ctx, collected))
			floors[1] = floors[0] + time.Since(late)
			floor <- err
		}()
		var label, class time.Duration
		_, err := s.Await(ctx, first, func(w fleetserver.Write) bool {
			switch {
			case w.Resource == "nodes" && w.Object.GetLabels()["nvidia.com/gpu.product"] == fmt.Sprintf("Bench-G%03d", i):
				label = w.At.Sub(began)
			case w.Resource == "deviceclasses" && w.Object.GetName() == fmt.Sprintf("bench-g%03d.gpu.nvidia.com", i):
				class = w.At.Sub(began)
			}
			return label > 0 && class > 0
		})
		if err := errors.Join(err, <-floor); err != nil {
			return fmt.Errorf("wait for class and label of the model %q: %w", product, err)
		}
		labels, classes = append(labels, table.Pair{Figure: label, Floor: floors[0]}), append(classes, table.Pair{Figure: class, Floor: floors[1]})
	}
	for what, pairs := range map[string][]table.Pair{"label": labels, "class": classes} {
		if err := table.Keep(b.raw, "change-to-"+what, pairs); err != nil {
			return err
		}
	}
	b.within("one slice to its node's label", labels, 100*time.Millisecond)
	b.within("one slice to its model's class", classes, 100*time.Millisecond)
	return nil
}

// within adds rows of p50 and p99 with the limit of the p99, 0 for no limit.
func (b *bench) within(figure string, pairs []table.Pair, most time.Duration) {
	for _, q := range []float64{0.5, 0.99} {
		value, floor := table.Quantile(table.Figures(pairs), q), table.Quantile(table.Floors(pairs), q)
		ratio := float64(value) / float64(floor)
		r := table.Row{
			Figure: fmt.Sprintf("%s, p%.0f", figure, 100*q), Value: table.Millis(value), Floor: table.Millis(floor), Ratio: fmt.Sprintf("%.2f", ratio), Budget: "-",
		}
		if q > 0.9 && most > 0 {
			r.Budget, r.Over = most.String(), value > most
		}
		b.rows = append(b.rows, r)
	}
}
