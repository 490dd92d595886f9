// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo shows the driver at work on a one-machine Kubernetes, which onenode runs around it, or on a kind cluster by
// demo/kind/kind.sh.
//
//	demo check         say at once what this machine lacks
//	demo install       simulate eight H100s, load the images, install the chart
//	demo all           install, run every demo, print what the containers saw
//	demo run [NAME…]   run every demo or those named, on a cluster with the driver
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"gpu-dra-driver/test/command"
	"gpu-dra-driver/test/e2e/env"
)

func main() { command.Main("demo", run) }

func run(ctx context.Context, args []string, out, log io.Writer) error {
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	if len(args) > 0 && verb != "run" {
		return fmt.Errorf("%s takes no arguments", verb)
	}
	if verb == "check" {
		return check()
	}
	s, err := env.FromEnvironment(log)
	if err != nil {
		return err
	}
	switch verb {
	case "install":
		return s.Install(ctx, "hgx-h100", 8)
	case "all":
		if err := s.Install(ctx, "hgx-h100", 8); err != nil {
			return err
		}
		return play(ctx, s, nil, out)
	case "run":
		if err := s.Adopt(ctx); err != nil {
			return err
		}
		if err := play(ctx, s, args, out); err != nil {
			return err
		}
		return s.Configure(ctx, "")
	}
	return fmt.Errorf("say check, install, all or run")
}

// check fails early, with a remedy, if this machine cannot run the cluster.
func check() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the one-machine cluster needs root, for namespaces and device nodes: run it with sudo -E")
	}
	return nil
}
