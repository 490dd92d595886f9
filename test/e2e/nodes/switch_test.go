//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
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
	// The chart's affinity does not reach a release without one: nodes can lack its labels, and then their plugins would end.
	must(t, cluster.Helm(ctx, "--set", "controller.enabled=false", "--set-json", "kubeletPlugin.affinity=null"))
	must(t, cluster.Helm(ctx, "--set", "controller.enabled=false"))
	plugins, err := cluster.Client.AppsV1().DaemonSets(env.Namespace).Get(ctx, env.Release+"-kubelet-plugin", metav1.GetOptions{})
	must(t, err)
	if plugins.Spec.Template.Spec.Affinity != nil || plugins.Status.DesiredNumberScheduled != 2 {
		t.Errorf("after an upgrade %d plugins have the affinity %v", plugins.Status.DesiredNumberScheduled, plugins.Spec.Template.Spec.Affinity)
	}
	waitClass(ctx, t, made, true) // The chart's own is not a reason to take it away.
	// In the network of the nodes, where both pods of two replicas would need the ports of the one machine.
	must(t, cluster.Helm(ctx, "--set", shortGrace, "--set", "webhook.hostNetwork=true,webhook.port=19443,controller.replicas=1",
		"--set", "controller.healthPort=19081,controller.metrics.httpEndpoint=:19080"))
	waitWebhook(ctx, t)
	waitClass(ctx, t, ofTheChart, false)
	eventually(ctx, t, "the class to be the controller's again", func(ctx context.Context) (bool, string) {
		c, err := cluster.Client.ResourceV1().DeviceClasses().Get(ctx, made, metav1.GetOptions{})
		return err == nil && c.Labels["gpu-dra-driver/managed-by"] == "gpu.nvidia.com", fmt.Sprint(err)
	})
}
