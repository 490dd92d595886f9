//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodes runs the shipped images and chart on two nodes with different GPUs, for the controller's tests.
package nodes

import (
	"context"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var cluster *env.Env

// shortGrace is the grace period of classes and labels, short enough for a test.
const shortGrace = "deviceClasses.grace=4s"

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, c *env.Env) error {
		cluster = c
		if err := c.SimOn(ctx, 2, "up", "--profile", "l40s-4"); err != nil {
			return err
		}
		return c.Install(ctx, "hgx-h100", 12, "--set", shortGrace)
	})
}

func testContext(t *testing.T) context.Context { return e2etest.Context(t, 4*time.Minute) }

var must = e2etest.Must

// eventually waits for an action of the controller.
func eventually(ctx context.Context, t *testing.T, what string, ok func(context.Context) (bool, string)) {
	t.Helper()
	must(t, cluster.Eventually(ctx, what, 60*time.Second, ok))
}
