// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command memory-limit-hook asks the plugin of its node to limit the memory that a starting container has on a GPU. The
// container's runtime runs it, on the node, with the state of the container as standard input.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/internal/memorylimit/requests"
)

// answerTimeout limits the wait for an answer. A plugin that starts, as in an upgrade, answers later.
const answerTimeout = 5 * time.Second

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "memory-limit-hook:", err)
		os.Exit(1)
	}
}

// run is the program.
func run(ctx context.Context, args []string, state io.Reader, stderr io.Writer) error {
	var r memorylimit.Request
	var procRoot string
	fs := flag.NewFlagSet(memorylimit.HookName, flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&procRoot, "proc", "/proc", "the node's /proc")
	dir, err := r.Parse(fs, args)
	if err != nil {
		return err
	}
	if r.Cgroup, err = requests.CgroupOf(state, procRoot); errors.Is(err, requests.ErrNoCgroup) {
		fmt.Fprintf(stderr, "memory-limit-hook: no limit on %s for claim %s: %v\n", r.Device, r.Claim, err)
		return nil
	} else if err != nil {
		return fmt.Errorf("find the container's cgroup: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answered, err := requests.Ask(ctx, host.New(host.Options{}), dir, r)
	if err == nil && !answered {
		fmt.Fprintf(stderr, "memory-limit-hook: no answer in %s; the limit of claim %s on %s follows once the plugin "+
			"answers\n", answerTimeout, r.Claim, r.Device)
	}
	return err
}
