//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestController_SwitchedOffAndOn_ClassesAreKept upgrades the chart to no controller, and finds the classes of an earlier one.
func TestController_SwitchedOffAndOn_ClassesAreKept(t *testing.T) {
	ctx := testContext(t)
	const made, ofTheChart = "mig-1g.10gb.nvidia.com", "mig-1g.5gb.nvidia.com" // No GPU here can be cut into the second.
	before := waitClass(ctx, t, made, true)
	t.Cleanup(func() { must(t, cluster.Helm(context.WithoutCancel(ctx), "--set", shortGrace)) })
	must(t, cluster.Helm(ctx, "--set", "controller.enabled=false"))
	if c := waitClass(ctx, t, made, true); c.UID != before.UID {
		t.Errorf("%s is another one", made)
	}
	if c := waitClass(ctx, t, ofTheChart, true); c.Labels["app.kubernetes.io/managed-by"] != "Helm" {
		t.Errorf("%s has the labels %v", ofTheChart, c.Labels)
	}
	// An administrator follows the documentation, and upgrades.
	_, err := cluster.Kubectl(ctx, "delete", "deviceclasses", "-l", "gpu-dra-driver/managed-by=gpu.nvidia.com")
	must(t, err)
	must(t, cluster.Helm(ctx, "--set", "controller.enabled=false"))
	if c := waitClass(ctx, t, made, true); c.Labels["app.kubernetes.io/managed-by"] != "Helm" {
		t.Errorf("%s has the labels %v", made, c.Labels)
	}
	must(t, cluster.Helm(ctx, "--set", "controller.enabled=false"))
	waitClass(ctx, t, made, true) // The chart's own is no reason to take it away.
	must(t, cluster.Helm(ctx, "--set", shortGrace))
	waitClass(ctx, t, ofTheChart, false)
	eventually(ctx, t, "the class to be the controller's again", func(ctx context.Context) (bool, string) {
		c, err := cluster.Client.ResourceV1().DeviceClasses().Get(ctx, made, metav1.GetOptions{})
		return err == nil && c.Labels["gpu-dra-driver/managed-by"] == "gpu.nvidia.com", fmt.Sprint(err)
	})
}
