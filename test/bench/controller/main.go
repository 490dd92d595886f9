// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command controller measures the shipped dra-controller against the API server of a simulated fleet: 5,000 nodes
// from cold, one change among them, no change, and claim validation. The floor is an empty request to the same
// server.
//
// It runs in a network namespace of its own, since the controller's webhook listens on all addresses.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"time"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/command"
)

func main() { command.Main("bench", run) }

type options struct {
	cut, whole      int
	updates, rate   int
	still, reviews  time.Duration
	raw, binary     string
	profiles, parts string
	strict          bool
}

func run(ctx context.Context, args []string, out, log io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.cut, "cut", 1000, "nodes of GPUs that can be cut")
	flags.IntVar(&o.whole, "whole", 4000, "nodes of GPUs that cannot")
	flags.IntVar(&o.updates, "updates", 50, "changes of one node")
	flags.IntVar(&o.rate, "rate", 200, "reviews a second")
	flags.DurationVar(&o.reviews, "reviews", 20*time.Second, "how long reviews are asked for, in each cluster")
	flags.DurationVar(&o.still, "still", 20*time.Second, "how long nothing changes")
	flags.StringVar(&o.raw, "raw", "", "directory for the raw samples")
	flags.StringVar(&o.binary, "controller", "bin/dra-controller", "the controller")
	flags.StringVar(&o.profiles, "profiles", "", "directory for Go's profiles of the controller; taking them costs time and memory")
	flags.StringVar(&o.parts, "parts", "fleet,pages,small", "what is measured")
	flags.BoolVar(&o.strict, "strict", false, "fail when a figure is over its budget")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !isolated() {
		return isolate(ctx, out, log)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(os.Getenv(inside))) }() // The parent may be gone.
	if err := loopback(); err != nil {
		return err
	}
	b := &bench{options: o, log: log}
	return errors.Join(b.all(ctx), table.Report(out, b.rows, o.raw, o.strict))
}
