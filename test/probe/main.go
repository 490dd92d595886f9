// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

var errUsage = errors.New("usage: probe look [--hold] | probe cuda [--alloc 10Gi,1Gi] [--load PERCENT] [--processes N] [--hold] | probe sleep")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], "/", os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		stop()
		os.Exit(1)
	}
}

// run executes one verb. root is the file system, "/" except in tests.
func run(ctx context.Context, args []string, root string, stdout io.Writer) error {
	verb, rest := "look", args
	if len(args) > 0 {
		verb, rest = args[0], args[1:]
	}
	switch verb {
	case "look":
		hold := len(rest) == 1 && rest[0] == "--hold"
		if len(rest) > 0 && !hold {
			return errUsage
		}
		if err := json.NewEncoder(stdout).Encode(look(ctx, root, os.Environ())); err != nil {
			return fmt.Errorf("cannot print: %w", err)
		}
		if hold {
			<-ctx.Done()
		}
		return nil
	case "cuda":
		return runCUDA(ctx, rest, root, stdout)
	case "sleep":
		if len(rest) > 0 {
			return errUsage
		}
		<-ctx.Done()
		return nil
	default:
		return errUsage
	}
}
