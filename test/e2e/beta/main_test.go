//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package beta runs the shipped images and chart on an API server that serves resource.k8s.io only in its beta
// versions.
package beta

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"gpu-dra-driver/test/e2e/env"
)

// cluster is the one cluster of the whole run.
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
	if _, err := cluster.Client.Discovery().ServerResourcesForGroupVersion("resource.k8s.io/v1"); !apierrors.IsNotFound(err) {
		return 1, errors.Join(errors.New("this API server serves resource.k8s.io/v1: start it with --runtime-config resource.k8s.io/v1=false,resource.k8s.io/v1beta1=true"), err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var settings []string
	if !usesClaims() {
		// No kubelet registers the plugin, which the pod's readiness requires.
		settings = []string{"--set", "kubeletPlugin.containers.gpus.healthcheckPort=-1"}
	}
	if err := cluster.Install(ctx, "hgx-h100", 8, settings...); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// usesClaims reports whether scheduler and kubelet use claims. Up to 1.33 they use v1beta1. Later ones use v1 only,
// and so does the API server internally: without v1 it becomes ready only if the feature gate
// DynamicResourceAllocation is off.
func usesClaims() bool {
	version, err := cluster.Client.Discovery().ServerVersion()
	return err == nil && version.Major == "1" && version.Minor <= "33"
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

// eventually waits for an action of the driver.
func eventually(ctx context.Context, t *testing.T, what string, ok func(context.Context) (bool, string)) {
	t.Helper()
	must(t, cluster.Eventually(ctx, what, 60*time.Second, ok))
}

// cdiSpecs lists the CDI specs of the driver on the node.
func cdiSpecs(ctx context.Context, t *testing.T) []string {
	t.Helper()
	out, err := cluster.OnNode(ctx, "find", "/var/run/cdi", "-name", "k8s."+env.Driver+"*.json")
	must(t, err)
	return strings.Fields(out)
}
