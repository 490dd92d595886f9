//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package beta

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// TestHelm_Uninstall_LeavesNoCDISpec is the last test. The uninstall check reads every claim.
func TestHelm_Uninstall_LeavesNoCDISpec(t *testing.T) {
	ctx := testContext(t)
	_, err := helm(ctx, "uninstall", env.Release, "--wait")
	must(t, err)
	eventually(ctx, t, "the driver's pods gone", func(ctx context.Context) (bool, string) {
		pods, err := cluster.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 0, fmt.Sprint(err)
	})
	if found := cdiSpecs(ctx, t); len(found) != 0 {
		t.Errorf("CDI specs are left: %v", found)
	}
}
