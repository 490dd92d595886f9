// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

const (
	gpus     = 8
	requests = 800
	// traces is the number of traces for a mean; every order is tried on the first few.
	traces, tried = 24, 2
)

var loads = []float64{0.6, 0.8, 0.9, 1.1}

func main() {
	out := flag.String("out", "dist", "directory for packing.svg")
	flag.Parse()
	if err := run(*out, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "packing:", err)
		os.Exit(1)
	}
}

func run(dir string, out, log io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "%d H100, %d requests a trace. Accepted: by first-fit, mean of %d traces; of best fixed: on %d of them.\n"+
		"The other columns: by the scheduler's allocator on the first.\n\n", gpus, requests, traces, tried)
	fmt.Fprintln(w, "mix\tload\torder\taccepted\tof best fixed\taccepted\tstranded slices\t7g to be had\tlargest free group (min)\tblocked GPUs\t")
	charts := map[string][]series{}
	var missed []error
	for _, m := range mixes {
		curves := map[string][]float64{}
		for _, load := range loads {
			fmt.Fprintf(log, "%s at %.0f %%\n", m.name, 100*load)
			c, err := compare(m, load)
			if err != nil {
				return err
			}
			for _, o := range orders {
				s := c.scores[o.name]
				mean, of := "", ""
				if n, ok := c.accepted[o.name]; ok {
					mean, of = fmt.Sprintf("%.2f %%", 100*float64(sum(n))/(traces*requests)), fmt.Sprintf("%.3f", float64(c.firsts[o.name])/float64(c.best))
				}
				curves[o.name] = append(curves[o.name], s.acceptance())
				fmt.Fprintf(w, "%s\t%.0f %%\t%s\t%s\t%s\t%.1f %%\t%.2f\t%.0f %%\t%s\t\n", m.name, 100*load, o.name, mean, of, s.acceptance(), s.stranded, s.whole, s.fragments)
			}
			fraction := 100 * float64(c.best) / (tried * requests)
			curves["best fixed"] = append(curves["best fixed"], fraction)
			fmt.Fprintf(w, "%s\t%.0f %%\tbest of %d\t\t1.000\t\t\t\t\t\t\n", m.name, 100*load, c.orders)
			missed = append(missed, evaluate(m, load, c)...)
		}
		for _, o := range orders {
			charts[m.name] = append(charts[m.name], series{o.name, curves[o.name]})
		}
		charts[m.name] = append(charts[m.name], series{"best fixed", curves["best fixed"]})
	}
	if err := w.Flush(); err != nil {
		return err
	}
	small(out)
	missed = append(missed, compareGroups(out), compareNodes(out), compareMoves(out))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(dir, "packing.svg")
	if err := draw(path, loads, charts); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nplot: %s\n", path)
	return errors.Join(missed...)
}

// comparison holds the results of the orders under one mix and load.
type comparison struct {
	// scores are the allocator's, of one trace; accepted are first-fit's, of all traces, and firsts those of the
	// traces of best.
	scores       map[string]score
	accepted     map[string][]int
	firsts       map[string]int
	best, orders int
}

// compare replays traces in every order, and finds the best fixed one.
func compare(m mix, load float64) (comparison, error) {
	c := comparison{scores: map[string]score{}, accepted: map[string][]int{}, firsts: map[string]int{}}
	var all [][]request
	for seed := range uint64(traces) {
		all = append(all, trace(m, load, gpus, requests, seed))
	}
	for _, o := range orders {
		s, err := replay(newAllocator(gpus, o), gpus, all[0])
		if err != nil {
			return c, err
		}
		c.scores[o.name] = s
	}
	model, err := replay(&firstFit{starts: ourStarts(), masks: make([]uint16, gpus)}, gpus, all[0])
	if err != nil {
		return c, err
	}
	if !slices.Equal(model.log, c.scores["ours"].log) {
		return c, fmt.Errorf("mix %s at load %.2f: the model of first-fit places requests elsewhere than the scheduler's allocator", m.name, load)
	}
	for i, t := range all {
		for name, starts := range map[string]map[string][]int{"ours": ourStarts(), "naive": naiveStarts(), "random": randomStarts(uint64(i))} {
			n := accepted(starts, gpus, t)
			c.accepted[name] = append(c.accepted[name], n)
			if i < tried {
				c.firsts[name] += n
			}
		}
	}
	c.best, c.orders = bestFixed(m, gpus, all[:tried])
	return c, nil
}

// evaluate reports the failures of the driver's order. It must be within 3 % of the best fixed one, and not below the
// naive or a random one by more than the statistical error. With busy GPUs it must be above both.
func evaluate(m mix, load float64, c comparison) (missed []error) {
	at := fmt.Sprintf("mix %s at load %.2f: ours accepts", m.name, load)
	if float64(c.firsts["ours"]) < 0.97*float64(c.best) {
		missed = append(missed, fmt.Errorf("%s %d, the best fixed order %d", at, c.firsts["ours"], c.best))
	}
	ours := c.accepted["ours"]
	for _, other := range []string{"naive", "random"} {
		mean, deviation := difference(ours, c.accepted[other])
		if mean < -2*deviation || load >= 0.8 && mean <= 0 {
			missed = append(missed, fmt.Errorf("%s %d, %s %d", at, sum(ours), other, sum(c.accepted[other])))
		}
	}
	return missed
}

// difference is the mean of a - b over traces, and the standard deviation of that mean.
func difference(a, b []int) (mean, deviation float64) {
	n, squares := float64(len(a)), 0.0
	for i := range a {
		d := float64(a[i] - b[i])
		mean += d / n
		squares += d * d / n
	}
	return mean, math.Sqrt((squares - mean*mean) / (n - 1))
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

// small compares with the clairvoyant optimum on one GPU, where it can be computed.
func small(out io.Writer) {
	const cases, length = 40, 14
	fmt.Fprintf(out, "\none GPU, %d traces of %d requests at a load of 110 %%: accepted, of what the clairvoyant optimum accepts\n\n", cases, length)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mix\tours\tnaive\tbest fixed\toptimum\t")
	for _, m := range mixes {
		ours, naive, best, most := 0, 0, 0, 0
		for i := range cases {
			t := trace(m, 1.1, 1, length, uint64(100+i))
			ours += accepted(ourStarts(), 1, t)
			naive += accepted(naiveStarts(), 1, t)
			b, _ := bestFixed(m, 1, [][]request{t})
			best += b
			most += optimum(t)
		}
		fmt.Fprintf(w, "%s\t%.1f %%\t%.1f %%\t%.1f %%\t%d\t\n", m.name, 100*float64(ours)/float64(most), 100*float64(naive)/float64(most), 100*float64(best)/float64(most), most)
	}
	_ = w.Flush() // to a terminal or a pipe
}
