//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// ownedByBoth are the classes of both charts.
var ownedByBoth = []string{"gpu.nvidia.com", "mig.nvidia.com"}

// TestMigration_ToNVIDIAsChartAndBack_PodsKeepTheirGPUs follows docs/migrating.md with a stand-in for NVIDIA's chart.
func TestMigration_ToNVIDIAsChartAndBack_PodsKeepTheirGPUs(t *testing.T) {
	ctx := testContext(t)
	const theirs = "nvidia-dra-driver-gpu"
	helm := func(args ...string) (string, error) {
		return cluster.Run(ctx, filepath.Join(cluster.Tree, "hack", "tool.sh"), append([]string{"helm", "-n", env.Namespace}, args...)...)
	}
	install := func(args ...string) (string, error) {
		return helm(append([]string{"upgrade", "--install", theirs, filepath.Join(cluster.Tree, "test/e2e/nodes/testdata/nvidia-chart")}, args...)...)
	}
	t.Cleanup(func() {
		ctx = context.WithoutCancel(ctx)
		_, _ = helm("uninstall", theirs) // It is gone, unless the test failed.
		must(t, cluster.Helm(ctx, "--take-ownership", "--set", shortGrace))
	})
	waitWebhook(ctx, t)

	// From this driver to NVIDIA's.
	before, remove := startDemo(ctx, t, "one-gpu")
	if out, err := install(); err == nil || !strings.Contains(out, "cannot be imported into the current release") {
		t.Errorf("both releases own the classes: %v\n%s", err, out)
	}
	_, err := install("--take-ownership")
	must(t, err)
	checkOwner(ctx, t, theirs)
	checkKept(ctx, t, before)
	remove()
	_, err = helm("uninstall", env.Release, "--wait")
	must(t, err)
	for _, name := range ownedByBoth {
		if _, err := cluster.Client.ResourceV1().DeviceClasses().Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("Helm keeps class %s of a release that it removes: %v", name, err)
		}
	}
	_, err = install()
	must(t, err)
	checkOwner(ctx, t, theirs)

	// From NVIDIA's driver to this one.
	if err := cluster.Helm(ctx, "--set", shortGrace); err == nil || !strings.Contains(err.Error(), "cannot be imported into the current release") {
		t.Errorf("both releases own the classes: %v", err)
	}
	must(t, cluster.Helm(ctx, "--take-ownership", "--set", shortGrace))
	must(t, cluster.WaitPublished(ctx, 12))
	checkOwner(ctx, t, env.Release)
	after, _ := startDemo(ctx, t, "one-gpu")
	_, err = helm("uninstall", theirs)
	must(t, err)
	checkKept(ctx, t, after)
	must(t, cluster.Helm(ctx, "--set", shortGrace))
	checkOwner(ctx, t, env.Release)
	checkKept(ctx, t, after)
	startDemo(ctx, t, "mig-one") // By the other class, which exists again.
}

// checkOwner checks which release has the classes of both charts.
func checkOwner(ctx context.Context, t *testing.T, release string) {
	t.Helper()
	for _, name := range ownedByBoth {
		c := waitClass(ctx, t, name, true)
		if owner := c.Annotations["meta.helm.sh/release-name"]; owner != release {
			t.Errorf("class %s belongs to %q, want %s", name, owner, release)
		}
	}
}

// startDemo starts a demo of one pod and returns the pod. The demo ends with the test, or by the returned function.
func startDemo(ctx context.Context, t *testing.T, name string) (pod corev1.Pod, remove func()) {
	t.Helper()
	demos, err := cluster.Demos()
	must(t, err)
	for _, d := range demos {
		if d.Name != name {
			continue
		}
		remove := func() { must(t, cluster.Remove(context.WithoutCancel(ctx), d)) }
		t.Cleanup(remove)
		must(t, cluster.Apply(ctx, d))
		pods, err := cluster.WaitSettled(ctx, d)
		must(t, err)
		return pods[0], remove
	}
	t.Fatalf("there is no demo %s", name)
	return corev1.Pod{}, nil
}

// checkKept checks that the pod's container runs on, and has its GPU.
func checkKept(ctx context.Context, t *testing.T, pod corev1.Pod) {
	t.Helper()
	now, err := cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	must(t, err)
	if now.UID != pod.UID || now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].ContainerID != pod.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("pod %s does not run on: %+v", pod.Name, now.Status)
	}
	view, err := cluster.Inspect(ctx, pod.Namespace, pod.Name, pod.Spec.Containers[0].Name)
	must(t, err)
	if got := view.GPUs(); len(got) != 1 {
		t.Errorf("pod %s sees %v", pod.Name, got)
	}
}
