//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/demand"
	"gpu-dra-driver/test/e2e/env"
)

// waitPlacements waits until the node publishes so many placements of a profile to new claims.
func waitPlacements(ctx context.Context, t *testing.T, profile string, least, most int) {
	t.Helper()
	must(t, cluster.Eventually(ctx, fmt.Sprintf("%d to %d placements of %s", least, most, profile), 90*time.Second, func(ctx context.Context) (bool, string) {
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
		return n >= least && n <= most && tainted == 0, fmt.Sprintf("%d placements, %d with a taint", n, tainted)
	}))
}

// waitNamedGPUs waits until the GPUs that the ConfigMap names have partitions, and no others.
func waitNamedGPUs(ctx context.Context, t *testing.T, configMaps typedcorev1.ConfigMapInterface) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "partitions of the GPUs that the controller named", 60*time.Second, func(ctx context.Context) (bool, string) {
		found, err := configMaps.Get(ctx, env.Release+"-asked", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		state, err := demand.Decode(found.Data)
		if err != nil {
			return false, err.Error()
		}
		devices, err := cluster.Devices(ctx, "mig")
		if err != nil {
			return false, err.Error()
		}
		named, have := sets.New[string](), sets.New[string]()
		for _, gpus := range state.GPUs {
			named.Insert(gpus...)
		}
		for _, d := range devices {
			of, err := gpu.ParseName(d.Name)
			if err != nil {
				return false, err.Error()
			}
			if have.Insert(of.PCIAddress); len(d.Taints) > 0 {
				return false, d.Name + " ends"
			}
		}
		return named.Equal(have), fmt.Sprintf("%q are named, and %q have partitions", sets.List(named), sets.List(have))
	}))
}

// withoutController ends the controller, does work, and starts it again.
func withoutController(ctx context.Context, t *testing.T, work func(ctx context.Context, asked typedcorev1.ConfigMapInterface)) {
	t.Helper()
	deployments := cluster.Client.AppsV1().Deployments(env.Namespace)
	resize := func(ctx context.Context, replicas int32) (before int32) {
		t.Helper()
		scale, err := deployments.GetScale(ctx, env.Release+"-controller", metav1.GetOptions{})
		must(t, err)
		before, scale.Spec.Replicas = scale.Spec.Replicas, replicas
		_, err = deployments.UpdateScale(ctx, scale.Name, scale, metav1.UpdateOptions{})
		must(t, err)
		return before
	}
	configMaps := cluster.Client.CoreV1().ConfigMaps(env.Namespace)
	replicas := resize(ctx, 0)
	defer func() {
		ctx := context.WithoutCancel(ctx)
		resize(ctx, replicas)
		// The test goes on with a controller that has said what the cluster asks for.
		must(t, cluster.Eventually(ctx, "the controller's ConfigMap", 90*time.Second, func(ctx context.Context) (bool, string) {
			_, err := configMaps.Get(ctx, env.Release+"-asked", metav1.GetOptions{})
			return err == nil, fmt.Sprint(err)
		}))
	}()
	driverPods(ctx, t, "controller", 0) // One that ends can still name other GPUs.
	work(ctx, configMaps)
}

// forgetDemand lets the hour pass for which nodes publish what earlier tests asked for.
func forgetDemand(ctx context.Context, t *testing.T) {
	t.Helper()
	withoutController(ctx, t, func(ctx context.Context, asked typedcorev1.ConfigMapInterface) {
		must(t, asked.Delete(ctx, env.Release+"-asked", metav1.DeleteOptions{}))
	})
}

// TestAuto_ClaimsAskForProfiles_NodePublishesThem follows one node, then removes the controller.
func TestAuto_ClaimsAskForProfiles_NodePublishesThem(t *testing.T) {
	ctx := testContext(t)
	forgetDemand(ctx, t)
	profiles := []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}
	for _, p := range profiles {
		waitPlacements(ctx, t, p, 1, 1)
	}
	small := createNamespace(ctx, t, nil)
	began := time.Now()
	deployPartitions(ctx, t, small, "1g.10gb", 10)
	waitReady(ctx, t, small, 10, nil)
	t.Logf("10 pods with a partition each are ready after %s", time.Since(began))
	// The GPUs with the pods serve, and two free ones. The other GPUs stay plain.
	waitPlacements(ctx, t, "1g.10gb", 4*7, 6*7)
	waitPlacements(ctx, t, "3g.40gb", 1, 1)

	large := createNamespace(ctx, t, nil)
	deployPartitions(ctx, t, large, "3g.40gb", 3)
	waitReady(ctx, t, large, 3, nil)
	waitPlacements(ctx, t, "3g.40gb", 4*2, 7*2)
	waitPlacements(ctx, t, "2g.20gb", 1, 1)

	withoutController(ctx, t, func(ctx context.Context, asked typedcorev1.ConfigMapInterface) {
		waitNamedGPUs(ctx, t, asked)
		before := sliceVersions(ctx, t)
		must(t, asked.Delete(ctx, env.Release+"-asked", metav1.DeleteOptions{}))
		// The next placement comes from the same slices.
		must(t, cluster.Client.CoreV1().Pods(large).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		waitReady(ctx, t, large, 3, nil)
		if after := sliceVersions(ctx, t); !maps.Equal(before, after) {
			t.Errorf("the slices changed without the controller: %v became %v", before, after)
		}
	})
}

// TestCordon_PartitionsPublishedLater_NoClaimGetsOne cordons all GPUs before the node publishes the partitions that claims then
// ask for, and restarts the plugin. One GPU after the other is released.
func TestCordon_PartitionsPublishedLater_NoClaimGetsOne(t *testing.T) {
	ctx := testContext(t)
	forgetDemand(ctx, t)
	const profile = "4g.40gb" // It fits once on a GPU.
	waitPlacements(ctx, t, profile, 1, 1)
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	devices, err := cluster.Devices(ctx, "gpu")
	must(t, err)
	var gpus []string
	for _, d := range devices {
		gpus = append(gpus, nodes.Items[0].Name+"/"+d.Name)
	}
	kubectlGPU(ctx, t, append([]string{"cordon"}, gpus...)...)
	t.Cleanup(func() {
		_, err := cluster.KubectlGPU(context.WithoutCancel(ctx), append([]string{"uncordon"}, gpus...)...)
		must(t, err)
	})
	// While the plugin writes the taints, some slices are missing for a moment, and the list says so.
	must(t, cluster.Eventually(ctx, fmt.Sprintf("ls shows cordons of %d GPUs", len(gpus)), 30*time.Second, func(ctx context.Context) (bool, string) {
		out, err := cluster.KubectlGPU(ctx, "ls", "--no-headers")
		if err != nil {
			return false, err.Error()
		}
		return strings.Count(out, "cordoned") == len(gpus), out
	}))

	namespace := createNamespace(ctx, t, nil)
	deployPartitions(ctx, t, namespace, profile, 2)
	// waiting waits until the node publishes all partitions, and no pod got one of them.
	waiting := func(when string) {
		t.Helper()
		must(t, cluster.Eventually(ctx, when+": all partitions published", 90*time.Second, func(ctx context.Context) (bool, string) {
			published := 0
			devices, err := cluster.Devices(ctx, "mig")
			if err != nil {
				return false, err.Error()
			}
			for _, d := range devices {
				if *d.Attributes["profile"].StringValue != profile {
					continue
				}
				published++
				// Those that an earlier test asked for can have the taint of their end too.
				if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == wire.CordonTaint }) {
					t.Errorf("%s: %s has the taints %v", when, d.Name, d.Taints)
				}
			}
			return published == len(gpus), fmt.Sprintf("%d of them", published)
		}))
		must(t, cluster.Eventually(ctx, when+": two pods wait", 60*time.Second, func(ctx context.Context) (bool, string) {
			pods, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			waiting := 0
			for _, p := range pods.Items {
				if env.Unschedulable(p) != "" {
					waiting++
				}
			}
			return waiting == 2, fmt.Sprintf("%d of %d wait", waiting, len(pods.Items))
		}))
	}
	waiting("cordoned before")
	old := pluginPods(ctx, t, 1)[0]
	must(t, cluster.Client.CoreV1().Pods(env.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}))
	if p := pluginPods(ctx, t, 1)[0]; p.UID == old.UID {
		t.Fatal("the plugin was not replaced")
	}
	waiting("after a restart of the plugin")
	for n, name := range gpus[:2] {
		kubectlGPU(ctx, t, "uncordon", name)
		must(t, cluster.Eventually(ctx, fmt.Sprintf("%d ready pods", n+1), 120*time.Second, func(ctx context.Context) (bool, string) {
			d, err := cluster.Client.AppsV1().Deployments(namespace).Get(ctx, "partitions", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return d.Status.ReadyReplicas == int32(n+1), fmt.Sprintf("%d are ready", d.Status.ReadyReplicas)
		}))
		if out := kubectlGPU(ctx, t, "claims", "-n", namespace, "--no-headers"); strings.Count(out, strings.TrimPrefix(name, nodes.Items[0].Name+"/")) != 1 {
			t.Errorf("the claims after uncordon of %s:\n%s", name, out)
		}
	}
	// A drain evicts the pod of one GPU, which then waits, and not the other one.
	kubectlGPU(ctx, t, "drain", gpus[0])
	must(t, cluster.Eventually(ctx, "one pod evicted", 90*time.Second, func(ctx context.Context) (bool, string) {
		out, err := cluster.KubectlGPU(ctx, "claims", "-n", namespace, "--no-headers")
		return err == nil && strings.Contains(out, "pending") && strings.Contains(out, "reserved"), out
	}))
}
