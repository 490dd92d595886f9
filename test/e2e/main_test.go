//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the shipped images and chart on real Kubernetes and inspects the containers from inside.
package e2e

import (
	"context"
	"testing"
	"time"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var cluster *env.Env

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, c *env.Env) error {
		cluster = c
		return c.Install(ctx, "hgx-h100", 8)
	})
}

func testContext(t *testing.T) context.Context { return e2etest.Context(t, 6*time.Minute) }

var must = e2etest.Must
