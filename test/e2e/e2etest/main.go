// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2etest holds what the packages of end-to-end cases share.
package e2etest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/env"
)

// Main runs the tests of a package on the cluster of the environment, after install has put the driver on it. The
// cluster serves the whole run, because starting it takes longer than any test.
func Main(m *testing.M, install func(ctx context.Context, cluster *env.Env) error) {
	code, err := run(m, install)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, install func(context.Context, *env.Env) error) (int, error) {
	cluster, err := env.FromEnvironment(os.Stderr)
	if err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := install(ctx, cluster); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// Context gives a test a context with a limit, which is shorter than the limit of the test itself.
func Context(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// Must ends a test after an error.
func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
