//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/version"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/test/e2e/env"
)

// checkGPUFault checks a fault of a pod's GPU: its taints, the pod's Event, and the end of the taints after a reset.
func checkGPUFault(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	pod := pods[0]
	devices := podDevices(ctx, t, pod)
	if len(devices) != 1 {
		t.Fatalf("the pod has %v", devices)
	}
	address := addressOf(t, devices[0])
	tainted := func(ctx context.Context) (out map[string]int) {
		out = map[string]int{}
		for _, kind := range []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup} {
			all, err := cluster.Devices(ctx, string(kind))
			must(t, err)
			for _, d := range all {
				for _, taint := range d.Taints {
					if taint.Value == string(resourceslices.NoDemand) {
						continue // It is left of settings of before this demo.
					}
					if taint.Value == health.Reset && (kind == gpu.KindGroup || strings.HasPrefix(d.Name, devices[0])) {
						out[string(kind)]++
					} else {
						t.Errorf("%s has the taint %s", d.Name, taint.Value)
					}
				}
			}
		}
		return out
	}
	wait := func(what string, ok func(map[string]int) bool) {
		t.Helper()
		must(t, cluster.Eventually(ctx, what, 90*time.Second, func(ctx context.Context) (bool, string) {
			now := tainted(ctx)
			return ok(now), fmt.Sprint(now)
		}))
	}
	must(t, cluster.Sim(ctx, "inject", "recovery", "reset", address))
	t.Cleanup(func() { must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "recovery", "none", address)) })
	// The GPU is in a pair, a group of four and the group of eight.
	wait("taints", func(n map[string]int) bool { return n["gpu"] == 1 && n["mig"] > 10 && n["nvlink-group"] == 3 })
	waitEvent(ctx, t, pod.Namespace, pod.Name, devices[0], "the driver asks for a reset of the GPU", "nvidia-smi -r")
	plugin := pluginPods(ctx, t, 1)[0]
	must(t, cluster.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the pod to end", 60*time.Second, func(ctx context.Context) (bool, string) {
		_, err := cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err != nil, "it is there"
	}))
	out, err := cluster.Run(ctx, filepath.Join(cluster.Root, "usr/bin/nvidia-smi"), "-r", "-i", address)
	if must(t, err); !strings.Contains(out, "successfully reset") {
		t.Errorf("nvidia-smi -r: %s", out)
	}
	wait("no taints", func(n map[string]int) bool { return len(n) == 0 })
	if now := pluginPods(ctx, t, 1)[0]; now.UID != plugin.UID || now.Status.ContainerStatuses[0].RestartCount != plugin.Status.ContainerStatuses[0].RestartCount {
		t.Error("the plugin restarted")
	}
}

// checkProgramFault checks an XID of a program: an Event on its pod and a condition of the device, but no taint. XIDs of
// before the plugin's event set are lost, so it repeats them.
func checkProgramFault(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	pod := pods[0]
	device := podDevices(ctx, t, pod)[0]
	const text = "XID 31, GPU memory page fault: the program's fault; the GPU is healthy"
	must(t, cluster.Eventually(ctx, "the XID in the claim's status", 60*time.Second, func(ctx context.Context) (bool, string) {
		must(t, cluster.Sim(ctx, "inject", "xid", "31", addressOf(t, device), "--pid", "812", "--name", "python"))
		claims, err := cluster.Claims(ctx, pod)
		must(t, err)
		var found []string
		for _, d := range claims[0].Status.Devices {
			for _, c := range d.Conditions {
				found = append(found, c.Type+" "+c.Message)
			}
		}
		return slices.Contains(found, "XIDReported "+text), fmt.Sprint(found)
	}))
	waitEvent(ctx, t, pod.Namespace, pod.Name, device, text, "Restart the program")
	all, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	for _, d := range all {
		if len(d.Taints) > 0 {
			t.Errorf("%s is tainted: %v", d.Name, d.Taints)
		}
	}
}

// taints lists the taints of the node's whole GPUs, as DEVICE=VALUE.
func taints(ctx context.Context, t *testing.T) (out []string) {
	t.Helper()
	all, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	for _, d := range all {
		for _, taint := range d.Taints {
			out = append(out, d.Name+"="+taint.Value)
		}
	}
	slices.Sort(out)
	return out
}

func waitTaints(ctx context.Context, t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	must(t, cluster.Eventually(ctx, fmt.Sprintf("taints %v", want), 90*time.Second, func(ctx context.Context) (bool, string) {
		now := taints(ctx, t)
		return slices.Equal(now, want), fmt.Sprint(now)
	}))
}

// checkGPULost checks that the pod of a lost GPU is replaced by one on another GPU, and that the GPU comes back.
func checkGPULost(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	pod := pods[0]
	device := podDevices(ctx, t, pod)[0]
	address := addressOf(t, device)
	must(t, cluster.Sim(ctx, "inject", "lose", address))
	began := time.Now()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, cluster.Sim(ctx, "inject", "restore", address))
		must(t, cluster.WaitPublished(ctx, 8))
		waitTaints(ctx, t)
	})
	for _, p := range waitReady(ctx, t, pod.Namespace, 1, map[string]corev1.Pod{pod.Name: pod}) {
		t.Logf("the new pod is ready %s after the loss", time.Since(began).Round(100*time.Millisecond))
		if now := podDevices(ctx, t, p); len(now) != 1 || now[0] == device {
			t.Errorf("the new pod has %v, and %s is lost", now, device)
		}
	}
	waitEvent(ctx, t, pod.Namespace, pod.Name, device, "the GPU has fallen off the bus", "drain the node")
	must(t, cluster.WaitPublished(ctx, 7)) // The claim of the first pod ends too, although its GPU does not answer.
	want := device + "   unhealthy: lost: the GPU has fallen off the bus. No slice has GPU"
	must(t, cluster.Eventually(ctx, "doctor names the GPU that no slice has", time.Minute, func(ctx context.Context) (bool, string) {
		out, _ := cluster.KubectlGPU(ctx, "doctor") // It exits with 1 after a warning.
		return strings.Contains(out, want), out
	}))
}

// TestHealth_XIDOfTaintXIDs_StaysUntilCleared kills the plugin meanwhile. The fault of another GPU shows that the new
// process publishes.
func TestHealth_XIDOfTaintXIDs_StaysUntilCleared(t *testing.T) {
	ctx := testContext(t, "--set-json", "health.taintXIDs=[46]")
	pod := runDemo(ctx, t, "one-gpu")[0]
	device := podDevices(ctx, t, pod)[0]
	address := addressOf(t, device)
	clearFaults := func(ctx context.Context) string {
		out, err := cluster.KubectlGPU(ctx, "clear", pod.Spec.NodeName+"/"+device)
		must(t, err)
		return out
	}
	t.Cleanup(func() { clearFaults(context.WithoutCancel(ctx)) }) // For a test that failed.
	must(t, cluster.Eventually(ctx, "the taint", 60*time.Second, func(ctx context.Context) (bool, string) {
		must(t, cluster.Sim(ctx, "inject", "xid", "46", address))
		now := taints(ctx, t)
		return slices.Equal(now, []string{device + "=" + health.Named}), fmt.Sprint(now)
	}))

	killPlugin(ctx, t, func() {})
	all, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	other := all[slices.IndexFunc(all, func(d resourceapi.Device) bool { return d.Name != device })].Name
	must(t, cluster.Sim(ctx, "inject", "recovery", "reset", addressOf(t, other)))
	t.Cleanup(func() {
		must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "recovery", "none", addressOf(t, other)))
	})
	// An XID of a program causes polls of all GPUs. Without it they are half a minute apart.
	wait := func(want ...string) {
		t.Helper()
		must(t, cluster.Eventually(ctx, "the taints", 60*time.Second, func(ctx context.Context) (bool, string) {
			must(t, cluster.Sim(ctx, "inject", "xid", "13", address))
			now := taints(ctx, t)
			return slices.Equal(now, want), fmt.Sprint(now)
		}))
	}
	both := []string{device + "=" + health.Named, other + "=" + health.Reset}
	slices.Sort(both)
	wait(both...)

	must(t, cluster.Sim(ctx, "inject", "recovery", "none", addressOf(t, other)))
	if out := clearFaults(ctx); !strings.Contains(out, "cleared "+health.Named+" (XID 46") {
		t.Errorf("kubectl gpu clear: %s", out)
	}
	wait()
}

// killPlugin kills the plugin's process, calls while when it is down, and waits for the next one.
func killPlugin(ctx context.Context, t *testing.T, while func()) {
	t.Helper()
	plugin := pluginPods(ctx, t, 1)[0]
	must(t, cluster.KillContainer(ctx, plugin, 0))
	while()
	must(t, cluster.Eventually(ctx, "a new process", 60*time.Second, func(ctx context.Context) (bool, string) {
		now := pluginPods(ctx, t, 1)[0]
		return containerID(t, now, 0) != containerID(t, plugin, 0), "the old one"
	}))
}

// TestHealth_DriverWithoutRecoveryActions_XIDStaysUntilCleared installs a driver before R570. The plugin is killed meanwhile.
func TestHealth_DriverWithoutRecoveryActions_XIDStaysUntilCleared(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { replaceDriver(context.WithoutCancel(ctx), t, "580.126.09") })
	replaceDriver(ctx, t, "550.54.15")
	pod := runDemo(ctx, t, "one-gpu")[0]
	device := podDevices(ctx, t, pod)[0]
	address := addressOf(t, device)
	must(t, cluster.Eventually(ctx, "the taint", 60*time.Second, func(ctx context.Context) (bool, string) {
		must(t, cluster.Sim(ctx, "inject", "xid", "46", address))
		now := taints(ctx, t)
		return slices.Equal(now, []string{device + "=" + health.Reset}), fmt.Sprint(now)
	}))
	waitEvent(ctx, t, pod.Namespace, pod.Name, device, "XID 46", "nvidia-smi -r")
	killPlugin(ctx, t, func() {})
	all, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	// The loss of another GPU shows that the new process publishes.
	other := addressOf(t, all[slices.IndexFunc(all, func(d resourceapi.Device) bool { return d.Name != device })].Name)
	must(t, cluster.Sim(ctx, "inject", "lose", other))
	must(t, cluster.WaitPublished(ctx, 7))
	must(t, cluster.Sim(ctx, "inject", "restore", other))
	must(t, cluster.WaitPublished(ctx, 8))
	waitTaints(ctx, t, device+"="+health.Reset)
	out, err := cluster.KubectlGPU(ctx, "clear", pod.Spec.NodeName+"/"+device)
	if must(t, err); !strings.Contains(out, "cleared "+health.Reset+" (XID 46") {
		t.Errorf("kubectl gpu clear: %s", out)
	}
	waitTaints(ctx, t)
}

// TestHealth_KernelLog_FindsXIDsOfWhileThePluginWasDown has a driver before R570, so that no poll shows the fault. The XID of
// another GPU, which no claim has, shows that a cleared fault does not come back with the next process.
func TestHealth_KernelLog_FindsXIDsOfWhileThePluginWasDown(t *testing.T) {
	ctx := testContext(t, "--set", "health.kernelLog=true")
	t.Cleanup(func() { replaceDriver(context.WithoutCancel(ctx), t, "580.126.09") })
	replaceDriver(ctx, t, "550.54.15")
	pod := runDemo(ctx, t, "one-gpu")[0]
	device := podDevices(ctx, t, pod)[0]
	clearFaults := func(device string) {
		out, err := cluster.KubectlGPU(ctx, "clear", pod.Spec.NodeName+"/"+device)
		if must(t, err); !strings.Contains(out, "cleared "+health.Reset) {
			t.Errorf("kubectl gpu clear: %s", out)
		}
	}
	killPlugin(ctx, t, func() { must(t, cluster.Sim(ctx, "inject", "xid", "46", addressOf(t, device))) })
	waitTaints(ctx, t, device+"="+health.Reset)
	waitEvent(ctx, t, pod.Namespace, pod.Name, device, "XID 46", "nvidia-smi -r")
	clearFaults(device)
	waitTaints(ctx, t)

	all, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	other := all[slices.IndexFunc(all, func(d resourceapi.Device) bool { return d.Name != device })].Name
	killPlugin(ctx, t, func() { must(t, cluster.Sim(ctx, "inject", "xid", "62", addressOf(t, other))) })
	waitTaints(ctx, t, other+"="+health.Reset)
	clearFaults(other)
	waitTaints(ctx, t)
}

// replaceDriver installs another version of the driver while no pod uses a GPU.
func replaceDriver(ctx context.Context, t *testing.T, version string) {
	t.Helper()
	must(t, cluster.Sim(ctx, "down"))
	must(t, cluster.Sim(ctx, "up", "--profile", "hgx-h100", "--driver-version", version))
	// The driver's pods still have mounts of the old files, because the node was not rebooted.
	must(t, cluster.Client.CoreV1().Pods(env.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component in (kubelet-plugin, mps-supervisor)",
	}))
	must(t, cluster.Eventually(ctx, "GPUs with the driver "+version, 90*time.Second, func(ctx context.Context) (bool, string) {
		all, err := cluster.Devices(ctx, string(gpu.KindGPU))
		must(t, err)
		n := 0
		for _, d := range all {
			if *d.Attributes["driverVersionRaw"].StringValue == version {
				n++
			}
		}
		return n == 8, fmt.Sprintf("%d of %d", n, len(all))
	}))
	for _, component := range []string{"kubelet-plugin", "mps-supervisor"} {
		driverPods(ctx, t, component, 1)
	}
}

// evictions are settings of the chart with which Kubernetes evicts the pods of faulty GPUs.
var evictions = []string{"--set-json", `health.evict=["lost","reset"]`}

// TestHealth_EvictReset_PodStartsOnAnotherGPU has a Deployment that a pod disruption budget does not protect, and a pod
// of nvidia.com/gpu, which Kubernetes does not evict.
func TestHealth_EvictReset_PodStartsOnAnotherGPU(t *testing.T) {
	ctx := testContext(t, evictions...)
	t.Cleanup(func() { waitTaints(context.WithoutCancel(ctx), t) })
	namespace := createNamespace(ctx, t, nil)
	stays := createPod(ctx, t, namespace, "stays", "", func(s *corev1.PodSpec) {
		s.ResourceClaims = nil
		one := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		s.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	})
	waitReady(ctx, t, namespace, 1, nil)
	stays, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, stays.Name, metav1.GetOptions{})
	must(t, err)

	moving := createNamespace(ctx, t, nil)
	deployPartitions(ctx, t, moving, "1g.10gb", 1)
	_, err = cluster.Client.PolicyV1().PodDisruptionBudgets(moving).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "partitions"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	first := waitReady(ctx, t, moving, 1, nil)
	addressOf := func(p corev1.Pod) string {
		d, err := gpu.ParseName(podDevices(ctx, t, p)[0])
		must(t, err)
		return d.PCIAddress
	}
	faulty := map[string]bool{}
	for _, p := range append(slices.Collect(maps.Values(first)), *stays) {
		address := addressOf(p)
		faulty[address] = true
		must(t, cluster.Sim(ctx, "inject", "recovery", "reset", address))
		t.Cleanup(func() { must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "recovery", "none", address)) })
	}
	for _, p := range waitReady(ctx, t, moving, 1, first) {
		if address := addressOf(p); faulty[address] {
			t.Errorf("the new pod is on the faulty GPU %s", address)
		}
	}
	waitEvent(ctx, t, namespace, stays.Name, "nvidia-smi -r")
	server, err := cluster.Client.Discovery().ServerVersion()
	must(t, err)
	evicts := version.MustParseGeneric(server.GitVersion).AtLeast(version.MustParseGeneric("1.37.2"))
	for {
		now, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, stays.Name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			must(t, err)
		}
		switch gone := err != nil || now.UID != stays.UID || now.DeletionTimestamp != nil; {
		case gone && !evicts:
			t.Error("a pod of nvidia.com/gpu was evicted: docs/health.md says from which version on Kubernetes does")
			return
		case gone == evicts:
			return
		}
		must(t, ctx.Err())
	}
}

// TestHealth_EvictLost_PartitionStartsOnAnotherGPU loses the GPU of a pod's partition, and removes the next one from the PCI
// bus. Both come back at the end.
func TestHealth_EvictLost_PartitionStartsOnAnotherGPU(t *testing.T) {
	ctx := testContext(t, evictions...)
	namespace := createNamespace(ctx, t, nil)
	deployPartitions(ctx, t, namespace, "1g.10gb", 1)
	now := waitReady(ctx, t, namespace, 1, nil)
	var lost []string
	for _, verbs := range [][2]string{{"lose", "restore"}, {"remove", "add"}} {
		was := now
		pod := slices.Collect(maps.Values(was))[0]
		device := podDevices(ctx, t, pod)[0]
		d, err := gpu.ParseName(device)
		must(t, err)
		lost = append(lost, d.PCIAddress)
		must(t, cluster.Sim(ctx, "inject", verbs[0], d.PCIAddress))
		began := time.Now()
		t.Cleanup(func() { must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", verbs[1], d.PCIAddress)) })
		now = waitReady(ctx, t, namespace, 1, was)
		t.Logf("%s: the new pod is ready after %s", verbs[0], time.Since(began).Round(100*time.Millisecond))
		for _, p := range now {
			if next, err := gpu.ParseName(podDevices(ctx, t, p)[0]); err != nil || slices.Contains(lost, next.PCIAddress) {
				t.Errorf("the new pod has %v (%v)", next, err)
			}
		}
		waitEvent(ctx, t, namespace, pod.Name, device, "the GPU has fallen off the bus", "drain the node")
		must(t, cluster.Eventually(ctx, "no device of the GPU", 60*time.Second, func(ctx context.Context) (bool, string) {
			all, err := cluster.Devices(ctx, string(gpu.KindMIG))
			must(t, err)
			n := slices.IndexFunc(all, func(other resourceapi.Device) bool { return other.Name == device })
			return n < 0, "its claim has it"
		}))
	}
	must(t, cluster.Sim(ctx, "inject", "restore", lost[0]))
	must(t, cluster.Sim(ctx, "inject", "add", lost[1]))
	must(t, cluster.WaitPublished(ctx, 8)) // An external partition would withdraw its whole GPU.
	waitTaints(ctx, t)
}

// TestHealth_ResetWhenIdle_ResetsOnlyUnusedGPU has a GPU that NVIDIA's driver cannot reset, and one of a pod.
func TestHealth_ResetWhenIdle_ResetsOnlyUnusedGPU(t *testing.T) {
	ctx := testContext(t, "--set", "health.reset=WhenIdle")
	t.Cleanup(func() { waitTaints(context.WithoutCancel(ctx), t) }) // The next test needs all GPUs.
	pod := runDemo(ctx, t, "one-gpu")[0]
	device := podDevices(ctx, t, pod)[0]
	all, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	other := all[slices.IndexFunc(all, func(d resourceapi.Device) bool { return d.Name != device })].Name
	must(t, cluster.Sim(ctx, "inject", "process", addressOf(t, other), "--pid", "812"))
	for _, d := range []string{device, other} {
		must(t, cluster.Sim(ctx, "inject", "recovery", "reset", addressOf(t, d)))
		t.Cleanup(func() {
			must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "recovery", "none", addressOf(t, d)))
		})
	}
	t.Cleanup(func() {
		must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "end", addressOf(t, other), "--pid", "812"))
	})
	waitTaints(ctx, t, device+"="+health.Reset, other+"="+health.Reset)
	// The end of any claim begins a round. The simulated process has no files open, so nvidia-smi refuses.
	third := runDemo(ctx, t, "two-containers-one-claim")[0]
	must(t, cluster.Client.CoreV1().Pods(third.Namespace).Delete(ctx, third.Name, metav1.DeleteOptions{}))
	waitEvent(ctx, t, metav1.NamespaceDefault, pod.Spec.NodeName, "reset failed for "+other, "nvidia-smi -r -i "+addressOf(t, other), "In use by another client")
	waitTaints(ctx, t, device+"="+health.Reset, other+"="+health.Reset)
	must(t, cluster.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	waitTaints(ctx, t, other+"="+health.Reset)
}
