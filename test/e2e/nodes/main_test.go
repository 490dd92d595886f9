//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodes runs the shipped images and chart on two nodes with different GPUs, for the controller's tests.
package nodes

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/env"
)

var cluster *env.Env

// shortGrace is the grace period of classes and labels, short enough for a test.
const shortGrace = "deviceClasses.grace=4s"

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
	if err := cluster.SimOn(ctx, 2, "up", "--profile", "l40s-4"); err != nil {
		return 1, err
	}
	if err := cluster.Install(ctx, "hgx-h100", 12, "--set", shortGrace); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// testContext gives a test a context that ends before the test's own limit.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits for an action of the controller.
func eventually(ctx context.Context, t *testing.T, what string, ok func(context.Context) (bool, string)) {
	t.Helper()
	must(t, cluster.Eventually(ctx, what, 60*time.Second, ok))
}
