//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

const (
	byMPSParameters  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`
	byTimeParameters = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing"}}`
)

// createShare creates a pod with the given memory of one GPU, by its NVML index, and parameters if given.
func createShare(ctx context.Context, t *testing.T, namespace, name, memory string, index int, parameters string, args ...string) {
	t.Helper()
	createShareAs(ctx, t, nil, namespace, name, memory, index, parameters, args...)
}

// createShareAs does the same for a user.
func createShareAs(ctx context.Context, t *testing.T, user *int64, namespace, name, memory string, index int, parameters string, args ...string) {
	t.Helper()
	exact := &resourceapi.ExactDeviceRequest{
		DeviceClassName: env.Driver,
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes['gpu.nvidia.com'].index == %d", index),
		}}},
	}
	if memory != "" {
		exact.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	}
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exact}}}},
	}
	if parameters != "" {
		c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: env.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
		}}}
	}
	_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, c, metav1.CreateOptions{})
	must(t, err)
	createPod(ctx, t, namespace, name, name, func(spec *corev1.PodSpec) {
		spec.Containers[0].Args = append([]string{"cuda", "--hold"}, args...)
		spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: user}
	})
}

// logLines returns the output of a pod's probe so far.
func logLines(ctx context.Context, t *testing.T, namespace, pod string) []string {
	t.Helper()
	data, err := cluster.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
	must(t, err)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// deletePod deletes a pod and waits until it is gone.
func deletePod(ctx context.Context, t *testing.T, namespace, name string) {
	t.Helper()
	must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the pod gone", 60*time.Second, func(ctx context.Context) (bool, string) {
		_, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	}))
}

// daemonPID returns the PID of a device's MPS daemon on the node.
func daemonPID(ctx context.Context, t *testing.T, device string) int {
	t.Helper()
	out, err := cluster.OnNode(ctx, "cat", "/var/lib/kubelet/plugins/"+env.Driver+"/mps/"+device+"/daemon.json")
	must(t, err)
	var note struct {
		PID int `json:"pid"`
	}
	must(t, json.Unmarshal([]byte(out), &note))
	if note.PID == 0 {
		t.Fatalf("the MPS daemon of %s does not run: %s", device, out)
	}
	return note.PID
}

// checkNoDaemons waits until no MPS daemon is left: no directory, no mount.
func checkNoDaemons(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "no MPS daemon left", 60*time.Second, func(ctx context.Context) (bool, string) {
		const dir = "/var/lib/kubelet/plugins/" + env.Driver + "/mps"
		out, err := cluster.OnNode(ctx, "find", dir, "-mindepth", "1", "-not", "-name", "supervisor.*")
		if err != nil {
			return false, err.Error()
		}
		mounts, err := cluster.OnNode(ctx, "cat", "/proc/self/mountinfo")
		if err != nil {
			return false, err.Error()
		}
		for line := range strings.Lines(mounts) {
			if strings.Contains(line, dir+"/") {
				out += line
			}
		}
		return strings.TrimSpace(out) == "", out
	}))
}

// TestShares_FourOfOneGPU_EachHasItsLimit runs the demo of four shares with a selector of one GPU in each request.
func TestShares_FourOfOneGPU_EachHasItsLimit(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	demo := findDemo(t, "fraction-four")
	text, err := os.ReadFile(demo.Path)
	must(t, err)
	const class = "            deviceClassName: gpu.nvidia.com\n"
	if strings.Count(string(text), class) == 0 {
		t.Fatalf("no request of gpu.nvidia.com in %s", demo.Path)
	}
	selected := strings.ReplaceAll(string(text), class, class+
		"            selectors: [{cel: {expression: \"device.attributes['gpu.nvidia.com'].index == 5\"}}]\n")
	demo.Path = filepath.Join(t.TempDir(), "fraction-four.yaml")
	must(t, os.WriteFile(demo.Path, []byte(selected), 0o600))
	pods := applyDemo(ctx, t, demo)
	for _, p := range pods {
		checkPod(ctx, t, p)
	}
	checkSharesOn(4, 1)(ctx, t, pods)
}

func TestShares_TwoNamespacesAndUsers_EachHasItsLimit(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t); checkNoDaemons(context.WithoutCancel(ctx), t) })
	for _, user := range []int64{0, 1000} {
		ns := createNamespace(ctx, t, nil)
		createShareAs(ctx, t, &user, ns, "p", "10Gi", 2, "", "--alloc", "9Gi,2Gi")
		pods, err := cluster.WaitPods(ctx, ns, 1)
		must(t, err)
		checkPod(ctx, t, pods[0])
		checkSharesOn(1, 1)(ctx, t, pods)
	}
}

func TestShares_StrategiesDiffer_EventNamesFirstClaim(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	ns := createNamespace(ctx, t, nil)
	createShare(ctx, t, ns, "first", "10Gi", 3, byMPSParameters)
	_, err := cluster.WaitPods(ctx, ns, 1)
	must(t, err)
	createShare(ctx, t, ns, "second", "10Gi", 3, byTimeParameters)
	waitEvent(ctx, t, ns, "second", ns+"/first", "MPS", "TimeSlicing")
	deletePod(ctx, t, ns, "second")
}

func TestShares_OfSeveralGPUsByMPS_Refused(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	ns := createNamespace(ctx, t, nil)
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "two"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: env.Driver, Count: 2,
				Capacity: &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("10Gi")}},
			},
		}}}},
	}
	_, err := cluster.Client.ResourceV1().ResourceClaims(ns).Create(ctx, c, metav1.CreateOptions{})
	must(t, err)
	createPod(ctx, t, ns, "two", "two", nil)
	waitEvent(ctx, t, ns, "two", "one device only", "TimeSlicing")
	deletePod(ctx, t, ns, "two")
}

func TestMPSDaemon_Killed_StartedAgainAndReported(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	ns := createNamespace(ctx, t, nil)
	for _, name := range []string{"a", "b"} {
		createShare(ctx, t, ns, name, "10Gi", 1, "", "--alloc", "5Gi")
	}
	pods, err := cluster.WaitPods(ctx, ns, 2)
	must(t, err)
	device := ""
	for _, devices := range devicesByClaim(ctx, t, pods[0]) {
		device = devices[0]
	}
	for _, p := range pods {
		_, err := cluster.Inspect(ctx, ns, p.Name, "probe")
		must(t, err)
	}
	_, err = cluster.OnNode(ctx, "kill", "-KILL", strconv.Itoa(daemonPID(ctx, t, device)))
	must(t, err)
	for _, p := range pods {
		must(t, cluster.Eventually(ctx, p.Name+" has its device again", 60*time.Second, func(ctx context.Context) (bool, string) {
			said := logLines(ctx, t, ns, p.Name)
			lost := slices.ContainsFunc(said, func(l string) bool { return strings.Contains(l, `"lost"`) })
			return lost && strings.Contains(said[len(said)-1], `"reconnected":true`), said[len(said)-1]
		}))
		waitEvent(ctx, t, ns, p.Name, "MPS daemon ended", device)
	}
	if g := simulatedGPU(t, addressOf(t, device)); g.UsedMiB() != 2*5<<10 {
		t.Errorf("two processes have 5 GiB each again, and the GPU's have %d MiB: %+v", g.UsedMiB(), g.Processes)
	}
}

func TestMPSSupervisor_Killed_AdoptsItsDaemons(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t); checkNoDaemons(context.WithoutCancel(ctx), t) })
	ns := createNamespace(ctx, t, nil)
	createShare(ctx, t, ns, "a", "10Gi", 1, "", "--alloc", "5Gi")
	_, err := cluster.WaitPods(ctx, ns, 1)
	must(t, err)
	_, err = cluster.Inspect(ctx, ns, "a", "probe")
	must(t, err)
	p := driverPods(ctx, t, "mps-supervisor", 1)[0]
	must(t, cluster.KillContainer(ctx, p, 0))
	must(t, cluster.Eventually(ctx, "a has its device again", 90*time.Second, func(ctx context.Context) (bool, string) {
		said := logLines(ctx, t, ns, "a")
		return strings.Contains(said[len(said)-1], `"reconnected":true`), said[len(said)-1]
	}))
	// Another share joins it.
	createShare(ctx, t, ns, "b", "10Gi", 1, "", "--alloc", "5Gi")
	pods, err := cluster.WaitPods(ctx, ns, 2)
	must(t, err)
	checkSharesOn(2, 1)(ctx, t, pods)
}

func TestShares_PluginUpgraded_KeepRunning(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	ns := createNamespace(ctx, t, nil)
	for _, name := range []string{"a", "b"} {
		createShare(ctx, t, ns, name, "10Gi", 1, "", "--alloc", "5Gi")
	}
	pods, err := cluster.WaitPods(ctx, ns, 2)
	must(t, err)
	for _, p := range pods {
		_, err := cluster.Inspect(ctx, ns, p.Name, "probe")
		must(t, err)
	}
	daemons := driverPods(ctx, t, "mps-supervisor", 1)[0]
	must(t, cluster.Roll(ctx, "--set", "mps.resources.requests.memory=33Mi"))
	pluginPods(ctx, t, 1)
	createShare(ctx, t, ns, "c", "10Gi", 1, "", "--alloc", "5Gi")
	pods, err = cluster.WaitPods(ctx, ns, 3)
	must(t, err)
	for _, p := range pods {
		checkPod(ctx, t, p)
		_, err := cluster.Inspect(ctx, ns, p.Name, "probe")
		must(t, err)
		if said := logLines(ctx, t, ns, p.Name); len(said) != 1 {
			t.Errorf("%s noticed: %q", p.Name, said)
		}
	}
	if now := driverPods(ctx, t, "mps-supervisor", 1)[0]; now.UID != daemons.UID {
		t.Error("the supervisor was replaced by an upgrade of the chart")
	}
}

// TestPod_OwnVariablesOfVisibleDevices_ClaimDecides has manifests written for the device plugin, with variables of their own. In
// a pod, NVIDIA_VISIBLE_DEVICES is the driver's, and CUDA_VISIBLE_DEVICES the pod's: it numbers the devices of the container.
func TestPod_OwnVariablesOfVisibleDevices_ClaimDecides(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	for name, c := range map[string]struct{ memory, cuda string }{"whole": {"", "0"}, "share": {"10Gi", "0"}} {
		exact := &resourceapi.ExactDeviceRequest{DeviceClassName: env.Driver}
		if c.memory != "" {
			exact.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(c.memory)}}
		}
		_, err := cluster.Client.ResourceV1().ResourceClaims(ns).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exact}}}},
		}, metav1.CreateOptions{})
		must(t, err)
		createPod(ctx, t, ns, name, name, func(spec *corev1.PodSpec) {
			spec.Containers[0].Args = []string{"cuda", "--hold"}
			spec.Containers[0].Env = append(spec.Containers[0].Env,
				corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, corev1.EnvVar{Name: "CUDA_VISIBLE_DEVICES", Value: c.cuda})
		})
	}
	pods, err := cluster.WaitPods(ctx, ns, 2)
	must(t, err)
	for _, p := range pods {
		checkPod(ctx, t, p) // One GPU, and NVIDIA_VISIBLE_DEVICES is void.
		view, err := cluster.Inspect(ctx, ns, p.Name, "probe")
		must(t, err)
		t.Logf("%s has CUDA_VISIBLE_DEVICES=%s", p.Name, view.Env["CUDA_VISIBLE_DEVICES"])
		if view.Env["CUDA_VISIBLE_DEVICES"] != "0" {
			t.Errorf("%s has CUDA_VISIBLE_DEVICES=%s, want its own", p.Name, view.Env["CUDA_VISIBLE_DEVICES"])
		}
	}
}

func TestMPSDaemon_DoesNotStart_OtherGPUsAreServed(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t); checkNoDaemons(context.WithoutCancel(ctx), t) })
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	file := filepath.Join(cluster.Root, engine.Dir, "mps-fault")
	must(t, os.WriteFile(file, []byte("fail "+state.GPUs[4].UUID+"\nhang "+state.GPUs[5].UUID+"\n"), 0o644))
	t.Cleanup(func() { must(t, os.Remove(file)) })
	stuck, fine := createNamespace(ctx, t, nil), createNamespace(ctx, t, nil)
	createShare(ctx, t, stuck, "fails", "10Gi", 4, "")
	createShare(ctx, t, stuck, "hangs", "10Gi", 5, "")
	began := time.Now()
	createShare(ctx, t, fine, "fine", "10Gi", 6, "", "--alloc", "9Gi,2Gi")
	pods, err := cluster.WaitPods(ctx, fine, 1)
	must(t, err)
	checkSharesOn(1, 1)(ctx, t, pods)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("a share of another GPU took %s", took)
	}
	waitEvent(ctx, t, stuck, "fails", "injected fault", "mps-supervisor")
	waitEvent(ctx, t, stuck, "hangs", "not ready", "mps-supervisor")
	deletePod(ctx, t, stuck, "fails")
	deletePod(ctx, t, stuck, "hangs")
}

func TestShares_GPUHasOtherProcesses_EventNamesThem(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	must(t, cluster.Sim(ctx, "inject", "process", "6", "--pid", "4242", "--memory", "100"))
	t.Cleanup(func() { must(t, cluster.Sim(context.WithoutCancel(ctx), "inject", "end", "6", "--pid", "4242")) })
	ns := createNamespace(ctx, t, nil)
	createShare(ctx, t, ns, "p", "10Gi", 6, "")
	waitEvent(ctx, t, ns, "p", "4242", "end those processes")
	deletePod(ctx, t, ns, "p")
}

func addressOf(t *testing.T, device string) string {
	t.Helper()
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	for _, g := range state.GPUs {
		if strings.HasSuffix(device, strings.NewReplacer(":", "-", ".", "-").Replace(g.Address)) {
			return g.Address
		}
	}
	t.Fatalf("no GPU of %s", device)
	return ""
}
