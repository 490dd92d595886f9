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

// testLimit is the limit of a test.
const testLimit = 6 * time.Minute

// everyDevice has nodes publish also the devices that no claim asks for.
var everyDevice = []string{"--set-json", "publish=[]"}

// testContext begins a test. The chart gets the Helm arguments, unless it has them since an earlier test: an upgrade takes ten
// seconds.
func testContext(t *testing.T, values ...string) context.Context {
	t.Helper()
	ctx := e2etest.Context(t, testLimit)
	must(t, cluster.Configure(ctx, "", values...))
	return ctx
}

var must = e2etest.Must
