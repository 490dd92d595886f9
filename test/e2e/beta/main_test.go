//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package beta runs the shipped images and chart on an API server that serves resource.k8s.io only in its beta
// versions.
package beta

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var cluster *env.Env

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, c *env.Env) error {
		cluster = c
		if _, err := c.Client.Discovery().ServerResourcesForGroupVersion("resource.k8s.io/v1"); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("this API server serves resource.k8s.io/v1: start it with --runtime-config resource.k8s.io/v1=false,resource.k8s.io/v1beta1=true"), err)
		}
		var settings []string
		if !usesClaims() {
			// No kubelet registers the plugin, which the pod's readiness requires.
			settings = []string{"--set", "kubeletPlugin.containers.gpus.healthcheckPort=-1"}
		}
		return c.Install(ctx, "hgx-h100", 8, settings...)
	})
}

// usesClaims reports whether scheduler and kubelet use claims. Up to 1.33 they use v1beta1. Later ones use v1 only,
// and so does the API server internally: without v1 it becomes ready only if the feature gate
// DynamicResourceAllocation is off.
func usesClaims() bool {
	version, err := cluster.Client.Discovery().ServerVersion()
	return err == nil && version.Major == "1" && version.Minor <= "33"
}

func testContext(t *testing.T) context.Context { return e2etest.Context(t, 4*time.Minute) }

var must = e2etest.Must

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
