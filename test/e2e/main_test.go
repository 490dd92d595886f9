//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the shipped images and chart on real Kubernetes and inspects the containers from inside.
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/env"
)

// cluster is the one cluster of the whole run; starting it takes longer than any test.
var cluster *env.Env

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	var err error
	if cluster, err = env.FromEnvironment(os.Stderr); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := cluster.Install(ctx, "hgx-h100", 8); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// testContext gives a test a context that ends before the test's own limit.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
