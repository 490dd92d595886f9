//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/e2e/env"
)

// sim runs commands of `gpusim inject`.
func sim(ctx context.Context, t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		must(t, cluster.Sim(ctx, "inject", strings.Fields(c)...))
	}
}

// restoreNumbers gives GPUs the numbers of their slots again, which other tests expect.
func restoreNumbers(t *testing.T) {
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, verb := range []string{"remove", "add"} {
			for slot := range 8 {
				_ = cluster.Sim(ctx, "inject", verb, fmt.Sprint("slot", slot)) // It can be gone, or there already.
			}
		}
		_ = cluster.Sim(ctx, "inject", "load")
		must(t, cluster.WaitPublished(ctx, 8))
	})
}

// waitSpec waits until the CDI spec of a pod's claim is as wanted, or nil without one. The limit is well below the 13 s of a
// plugin that waits for scans.
func waitSpec(ctx context.Context, t *testing.T, p corev1.Pod, what string, wanted func(*specs.Spec) bool) {
	t.Helper()
	claims, err := cluster.Claims(ctx, p)
	must(t, err)
	file := fmt.Sprintf("/var/run/cdi/k8s.%s-claim_%s.json", env.Driver, claims[0].UID)
	must(t, cluster.Eventually(ctx, what+" of "+p.Name, 8*time.Second, func(ctx context.Context) (bool, string) {
		data, err := cluster.OnNode(ctx, "sh", "-c", "cat "+file+" 2>/dev/null || true")
		var s *specs.Spec
		if err == nil && data != "" {
			s = new(specs.Spec)
			err = json.Unmarshal([]byte(data), s)
		}
		return err == nil && wanted(s), fmt.Sprint(err, " ", data)
	}))
}

func noSpec(s *specs.Spec) bool { return s == nil }

// kill ends the first container of a pod, which the kubelet restarts with the CDI spec and without the plugin.
func kill(ctx context.Context, t *testing.T, p corev1.Pod) {
	t.Helper()
	now, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	must(t, err)
	must(t, cluster.KillContainer(ctx, *now, 0))
}

// waitRestarted waits until a pod's container runs again.
func waitRestarted(ctx context.Context, t *testing.T, p corev1.Pod) corev1.Pod {
	t.Helper()
	var now *corev1.Pod
	must(t, cluster.Eventually(ctx, p.Name+" started again", 90*time.Second, func(ctx context.Context) (bool, string) {
		var err error
		if now, err = cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{}); err != nil {
			return false, err.Error()
		}
		c := now.Status.ContainerStatuses[0]
		return c.State.Running != nil && c.ContainerID != p.Status.ContainerStatuses[0].ContainerID, fmt.Sprintf("%+v", c.State)
	}))
	return *now
}

// waitRefused waits until the runtime refuses to start a pod's container, because its claim has no CDI spec.
func waitRefused(ctx context.Context, t *testing.T, p corev1.Pod) {
	t.Helper()
	must(t, cluster.Eventually(ctx, p.Name+" refused", 60*time.Second, func(ctx context.Context) (bool, string) {
		now, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		c := now.Status.ContainerStatuses[0]
		if c.State.Running != nil && c.ContainerID != p.Status.ContainerStatuses[0].ContainerID {
			t.Fatalf("%s started again, with another claim's device", p.Name)
		}
		w := c.State.Waiting
		return w != nil && strings.Contains(w.Message, "unresolvable CDI devices"), fmt.Sprintf("%+v", c.State)
	}))
}

// TestReload_NumbersChange_RestartedContainersGetTheirOwnGPU reloads the driver, which numbers two GPUs anew. All containers
// end, and restart while the driver is away and afterwards.
func TestReload_NumbersChange_RestartedContainersGetTheirOwnGPU(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	var pods []corev1.Pod
	for _, name := range []string{"one", "two", "three"} {
		createClaim(ctx, t, ns, name, "")
		createPod(ctx, t, ns, name, name, nil)
		pods = append(pods, waitRunning(ctx, t, ns, name))
	}
	restoreNumbers(t)
	one, two := addressOf(t, podDevices(ctx, t, pods[0])[0]), addressOf(t, podDevices(ctx, t, pods[1])[0])
	before, _ := minorAndUUID(t, podDevices(ctx, t, pods[0])[0])

	sim(ctx, t, "unload")
	for _, p := range pods {
		waitSpec(ctx, t, p, "no CDI spec", noSpec)
		kill(ctx, t, p)
	}
	for _, p := range pods {
		waitRefused(ctx, t, p)
	}
	waitEvent(ctx, t, ns, "one", "keep the CDI spec failed", "it was removed")
	if before == 0 {
		one, two = two, one
	}
	sim(ctx, t, "remove "+one, "remove "+two, "add "+one, "add "+two, "load")
	for i, p := range pods {
		pods[i] = waitRestarted(ctx, t, p)
		checkPod(ctx, t, pods[i])
	}
	after, _ := minorAndUUID(t, podDevices(ctx, t, pods[0])[0])
	if before == after {
		t.Errorf("the reload gave no other number than %d", before)
	}

	// GPUs are bound anew while the driver stays, and containers restart at once after the spec follows.
	sim(ctx, t, "remove "+one, "remove "+two, "add "+two, "add "+one)
	for i, p := range pods[:2] {
		device := podDevices(ctx, t, p)[0]
		minor, _ := minorAndUUID(t, device)
		waitSpec(ctx, t, p, fmt.Sprintf("the CDI spec with /dev/nvidia%d", minor), func(s *specs.Spec) bool {
			return s != nil && s.Devices[0].ContainerEdits.DeviceNodes[0].Path == fmt.Sprintf("/dev/nvidia%d", minor)
		})
		kill(ctx, t, p)
		pods[i] = waitRestarted(ctx, t, p)
		checkPod(ctx, t, pods[i])
	}
}

// TestReload_GPUGoneAndPartitionLost_NoTwoContainersShareADevice gives the numbers of a lost GPU and of a lost partition to
// others, which new pods get.
func TestReload_GPUGoneAndPartitionLost_NoTwoContainersShareADevice(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	createClaim(ctx, t, ns, "gone", "")
	createPod(ctx, t, ns, "gone", "gone", nil)
	createPartitionClaim(ctx, t, ns, "part", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'")
	createPod(ctx, t, ns, "part", "part", nil)
	gone, part := waitRunning(ctx, t, ns, "gone"), waitRunning(ctx, t, ns, "part")
	restoreNumbers(t)
	lost := addressOf(t, podDevices(ctx, t, gone)[0])
	device, err := gpu.ParseName(podDevices(ctx, t, part)[0])
	must(t, err)
	cut := device.PCIAddress

	// The kernel numbers GPUs from the lowest free number on: the GPU of the partition gets the lost one's.
	sim(ctx, t, "unload", "remove "+lost, "remove "+cut, "add "+cut, "load")
	waitSpec(ctx, t, gone, "no CDI spec", noSpec)
	waitSpec(ctx, t, part, "no CDI spec", noSpec)
	kill(ctx, t, gone)
	kill(ctx, t, part)
	waitRefused(ctx, t, gone)
	waitRefused(ctx, t, part)
	waitEvent(ctx, t, ns, "part", "keep the CDI spec failed", "it was removed")

	// A pod without its GPU or partition can end, and a new pod gets the partition.
	must(t, cluster.Client.CoreV1().Pods(ns).Delete(ctx, "part", metav1.DeleteOptions{}))
	createPartitionClaim(ctx, t, ns, "next", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'")
	createPod(ctx, t, ns, "next", "next", nil)
	checkPod(ctx, t, waitRunning(ctx, t, ns, "next"))

	// The GPU comes back with another number.
	sim(ctx, t, "add "+lost)
	checkPod(ctx, t, waitRestarted(ctx, t, gone))
}
