// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench calls the socket of the shipped plugin as the kubelet does, against a real API server and the
// simulated library. It prints each measurement with a floor from the same run and client.
//
// The floor of a Prepare is the minimum of any implementation: one GET of the claim, one durable file, one RPC. Floor
// and measurement are interleaved, so that a busy machine slows both. Raw samples go to the directory of -raw.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"regexp"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/command"
	"gpu-dra-driver/test/e2e/env"
)

func main() { command.Main("bench", run) }

type options struct {
	samples, rounds, prepared int
	idle                      int
	raw, only                 string
	profile, strict           bool
}

func run(ctx context.Context, args []string, out, log io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&o.samples, "samples", 300, "samples of each latency")
	flags.IntVar(&o.rounds, "rounds", 1000, "rounds of prepare and unprepare in the leak check")
	flags.IntVar(&o.prepared, "prepared", 200, "claims prepared at once in the growth check")
	flags.IntVar(&o.idle, "idle", 60, "seconds at rest before memory and CPU are read")
	flags.StringVar(&o.raw, "raw", "", "directory for the raw samples")
	flags.StringVar(&o.only, "only", "", "regular expression of the parts to run; the plugin always starts")
	flags.BoolVar(&o.profile, "profile", false, "keep the plugin's CPU profile at rest with the raw samples")
	flags.BoolVar(&o.strict, "strict", false, "fail when a figure is over its budget")
	if err := flags.Parse(args); err != nil {
		return err
	}
	only, err := regexp.Compile("^start to published$|" + o.only)
	if err != nil {
		return err
	}
	s, err := env.FromEnvironment(log)
	if err != nil {
		return err
	}
	if err := s.Sim(ctx, "up", "--profile", "hgx-h100"); err != nil {
		return err
	}
	b := &bench{options: o, stage: s, log: log}
	defer b.close()
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start to published", b.start},
		{"rest without claims", b.restWithoutClaims},
		{"prepare one at a time", b.single},
		{"prepare eight at once", b.eight},
		{"prepare a group of eight", b.group},
		{"what is published", b.size},
		{"prepare a partition", b.mig},
		{"cut eight GPUs", b.cutAtOnce},
		{"the first share of a GPU", b.firstShare},
		{"further shares", b.furtherShares},
		{"48 shares at once", b.manyShares},
		{"beside a daemon that hangs", b.besideStuck},
		{fmt.Sprintf("prepare beside %d prepared", o.prepared), b.growth},
		{"fault to taint", b.faults},
		{"rest", b.rest},
		{"rest with MPS", b.restWithMPS},
		{"rounds", b.leaks},
	} {
		if !only.MatchString(part.name) {
			continue
		}
		if err := s.Step(part.name, func() error { return part.run(ctx) }); err != nil {
			return err
		}
	}
	return table.Report(out, b.rows, b.raw, b.strict)
}
