// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/fleetserver"
)

// changes puts other GPUs into one node, again and again, and measures until the node's label and the model's class follow.
func (b *bench) changes(ctx context.Context, s *fleetserver.Server) error {
	defer b.profileDuring(ctx, "changes")()
	node := b.cut + b.whole - 1
	var labels, classes []table.Pair
	pace := time.NewTicker(250 * time.Millisecond) // What a change set off has ended by the next.
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
		if err != nil {
			return fmt.Errorf("wait for class and label of the model %q: %w", product, err)
		}
		labels, classes = append(labels, table.Pair{Figure: label}), append(classes, table.Pair{Figure: class})
	}
	for what, pairs := range map[string][]table.Pair{"label": labels, "class": classes} {
		if err := table.Keep(b.raw, "change-to-"+what, pairs); err != nil {
			return err
		}
	}
	b.within("one slice to its node's label", labels)
	b.within("one slice to its model's class", classes)
	return nil
}

// within adds rows of p50 and p99, which are to be at most 100 ms.
func (b *bench) within(figure string, pairs []table.Pair) {
	for _, q := range []float64{0.5, 0.99} {
		took := table.Quantile(table.Figures(pairs), q)
		b.rows = append(b.rows, table.Row{
			Figure: fmt.Sprintf("%s, p%.0f", figure, 100*q), Value: table.Millis(took), Floor: "-", Ratio: "-", Budget: "100 ms", Over: took > 100*time.Millisecond,
		})
	}
}
