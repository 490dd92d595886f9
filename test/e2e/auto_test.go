//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// waitPlacements waits until the node publishes this number of placements of a profile to new claims.
func waitPlacements(ctx context.Context, t *testing.T, profile string, want int) {
	t.Helper()
	must(t, cluster.Eventually(ctx, fmt.Sprintf("%d placements of %s", want, profile), 90*time.Second, func(ctx context.Context) (bool, string) {
		devices, err := cluster.Devices(ctx, "mig")
		if err != nil {
			return false, err.Error()
		}
		n, tainted := 0, 0
		for _, d := range devices {
			if *d.Attributes["profile"].StringValue != profile {
				continue
			}
			n++
			if len(d.Taints) > 0 {
				tainted++
			}
		}
		return n == want && tainted == 0, fmt.Sprintf("%d placements, %d with a taint", n, tainted)
	}))
}

// TestAuto_ClaimsAskForProfiles_NodePublishesThem follows one node with the setting Auto, then removes the controller.
func TestAuto_ClaimsAskForProfiles_NodePublishesThem(t *testing.T) {
	ctx := testContext(t)
	must(t, cluster.Configure(ctx, ""))
	t.Cleanup(func() { must(t, cluster.Helm(context.WithoutCancel(ctx))) })
	must(t, cluster.Helm(ctx, "--set", "publish[0].profiles=Auto"))
	profiles := []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}
	for _, p := range profiles {
		waitPlacements(ctx, t, p, 1)
	}
	small := createNamespace(ctx, t, nil)
	began := time.Now()
	deployPartitions(ctx, t, small, "1g.10gb", 10)
	waitReady(ctx, t, small, 10, nil)
	t.Logf("10 pods with a partition each are ready after %s", time.Since(began))
	waitPlacements(ctx, t, "1g.10gb", 56)
	waitPlacements(ctx, t, "3g.40gb", 1)

	large := createNamespace(ctx, t, nil)
	deployPartitions(ctx, t, large, "3g.40gb", 3)
	waitReady(ctx, t, large, 3, nil)
	waitPlacements(ctx, t, "3g.40gb", 16)
	waitPlacements(ctx, t, "2g.20gb", 1)

	controllers := cluster.Client.AppsV1().Deployments(env.Namespace)
	name := env.Release + "-controller"
	scale, err := controllers.GetScale(ctx, name, metav1.GetOptions{})
	must(t, err)
	replicas := scale.Spec.Replicas
	resize := func(ctx context.Context, replicas int32) {
		scale, err := controllers.GetScale(ctx, name, metav1.GetOptions{})
		must(t, err)
		scale.Spec.Replicas = replicas
		_, err = controllers.UpdateScale(ctx, name, scale, metav1.UpdateOptions{})
		must(t, err)
	}
	resize(ctx, 0)
	t.Cleanup(func() { resize(context.WithoutCancel(ctx), replicas) })
	must(t, cluster.Eventually(ctx, "no controller", 60*time.Second, func(ctx context.Context) (bool, string) {
		d, err := controllers.Get(ctx, name, metav1.GetOptions{})
		return err == nil && d.Status.Replicas == 0, fmt.Sprint(err)
	}))
	before := sliceVersions(ctx, t)
	must(t, cluster.Client.CoreV1().ConfigMaps(env.Namespace).Delete(ctx, env.Release+"-asked", metav1.DeleteOptions{}))
	// The next placement comes from the same slices.
	must(t, cluster.Client.CoreV1().Pods(large).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	waitReady(ctx, t, large, 3, nil)
	if after := sliceVersions(ctx, t); !maps.Equal(before, after) {
		t.Errorf("the slices changed without the controller: %v became %v", before, after)
	}
}
