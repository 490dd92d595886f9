// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package table prints measurements with their floors and budgets, and stores the raw samples.
package table

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Row is one measurement.
type Row struct {
	Figure, Value, Floor, Ratio, Budget string
	Over                                bool
}

// Plain returns a measurement without a floor.
func Plain(figure, value, budget string, over bool) Row {
	return Row{Figure: figure, Value: value, Floor: "-", Ratio: "-", Budget: budget, Over: over}
}

// Report prints the rows, and the directory of the raw samples unless its name is empty. If strict, it fails when a row is
// over budget.
func Report(out io.Writer, rows []Row, raw string, strict bool) error {
	over := 0
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tVALUE\tFLOOR\tRATIO\tBUDGET\t")
	for _, r := range rows {
		mark := "ok"
		if r.Over {
			mark = "OVER"
			over++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Figure, r.Value, r.Floor, r.Ratio, r.Budget, mark)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if raw != "" {
		fmt.Fprintln(out, "raw samples:", filepath.Clean(raw))
	}
	if over > 0 && strict {
		return fmt.Errorf("%d figures are over budget", over)
	}
	return nil
}

// Pair is one sample of a measurement and one of its floor.
type Pair struct{ Figure, Floor time.Duration }

// Keep writes raw samples into a directory, unless its name is empty.
func Keep(dir, name string, pairs []Pair) error {
	if dir == "" {
		return nil
	}
	var text strings.Builder
	text.WriteString("figure_us,floor_us\n")
	for _, p := range pairs {
		fmt.Fprintf(&text, "%d,%d\n", p.Figure.Microseconds(), p.Floor.Microseconds())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".csv"), []byte(text.String()), 0o644)
}

// Figures returns the samples of the measurement, in order.
func Figures(pairs []Pair) []time.Duration {
	return column(pairs, func(p Pair) time.Duration { return p.Figure })
}

// Floors returns the samples of the floor, in order.
func Floors(pairs []Pair) []time.Duration {
	return column(pairs, func(p Pair) time.Duration { return p.Floor })
}

func column(pairs []Pair, of func(Pair) time.Duration) []time.Duration {
	out := make([]time.Duration, len(pairs))
	for i, p := range pairs {
		out[i] = of(p)
	}
	slices.Sort(out)
	return out
}

// Quantile returns the value of a sorted list at a fraction of its length.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// Millis formats a duration in milliseconds.
func Millis(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
