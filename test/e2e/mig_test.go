//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

// checkClean waits until no GPU has partitions, processes or a changed mode.
func checkClean(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "no partition left", 60*time.Second, func(context.Context) (bool, string) {
		state, err := engine.Open(cluster.Root, nil).State()
		if err != nil {
			return false, err.Error()
		}
		for _, g := range state.GPUs {
			if len(g.Instances) > 0 || g.ComputeMode != 0 || g.TimeSlice != 0 || len(g.Processes) > 0 {
				return false, fmt.Sprintf("GPU %s has %+v, compute mode %d, time slice %d, processes %+v", g.Address, g.Instances, g.ComputeMode, g.TimeSlice, g.Processes)
			}
		}
		return true, ""
	}))
}

// checkOneGPU checks the number of devices of a demo's pods, and that they belong to one GPU.
func checkOneGPU(want int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		checkDevices(want)(ctx, t, pods)
		gpus := map[string]bool{}
		for _, p := range pods {
			for _, devices := range devicesByClaim(ctx, t, p) {
				for _, name := range devices {
					d, err := gpu.ParseName(name)
					must(t, err)
					gpus[d.PCIAddress] = true
				}
			}
		}
		if len(gpus) != 1 {
			t.Errorf("the devices are of %d GPUs", len(gpus))
		}
	}
}

// checkQueueEnds checks that every job of a queue ran on a partition of its own.
func checkQueueEnds(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	done, err := cluster.WaitPods(ctx, pods[0].Namespace, 12)
	must(t, err)
	seen := map[string]bool{}
	for _, p := range done {
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		capabilities := len(view.Capabilities())
		partition := slices.DeleteFunc(view.UUIDs(), func(uuid string) bool { return !strings.HasPrefix(uuid, "MIG-") })
		if len(view.GPUs()) != 1 || capabilities != 2 || len(partition) != 1 || seen[partition[0]] {
			t.Errorf("%s saw GPUs %v, %d capabilities, partition %v", p.Name, view.GPUs(), capabilities, partition)
			continue
		}
		seen[partition[0]] = true
	}
}

// publishedDevice finds a published device by name.
func publishedDevice(ctx context.Context, t *testing.T, kind, name string) (resourceapi.Device, bool) {
	t.Helper()
	devices, err := cluster.Devices(ctx, kind)
	must(t, err)
	for _, d := range devices {
		if d.Name == name {
			return d, true
		}
	}
	return resourceapi.Device{}, false
}

// createPartitionClaim creates a claim for a partition that a CEL expression selects.
func createPartitionClaim(ctx context.Context, t *testing.T, namespace, name, expression string) {
	t.Helper()
	_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "mig.nvidia.com",
				Selectors:       []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			},
		}}}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// waitRunning waits until a pod is ready and returns it.
func waitRunning(ctx context.Context, t *testing.T, namespace, name string) corev1.Pod {
	t.Helper()
	return waitRunningFor(ctx, t, namespace, name, 90*time.Second)
}

func waitRunningFor(ctx context.Context, t *testing.T, namespace, name string, limit time.Duration) corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	must(t, cluster.Eventually(ctx, "pod "+name, limit, func(ctx context.Context) (bool, string) {
		var err error
		if pod, err = cluster.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err.Error()
		}
		return ready(*pod), string(pod.Status.Phase) + " " + env.Unschedulable(*pod)
	}))
	return *pod
}

func TestPartitions_PodWantsWholeGPU_WaitsUntilTheyEnd(t *testing.T) {
	ctx := testContext(t)
	namespace := createNamespace(ctx, t, nil)
	// A 4g.40gb fits once on a GPU: each of the eight has one.
	deployPartitions(ctx, t, namespace, "4g.40gb", 8)
	waitReady(ctx, t, namespace, 8, nil)
	createClaim(ctx, t, namespace, "one", "")
	createPod(ctx, t, namespace, "waits", "one", nil)
	must(t, cluster.Eventually(ctx, "the pod to wait", 60*time.Second, func(ctx context.Context) (bool, string) {
		p, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, "waits", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return env.Unschedulable(*p) != "", string(p.Status.Phase)
	}))
	gpus := checkKubectlGPU(ctx, t, namespace)
	why := func(pod, reason string) {
		t.Helper()
		if out := kubectlGPU(ctx, t, "why", pod, "-n", namespace); !strings.Contains(out, "waits") || !strings.Contains(out, reason) {
			t.Errorf("why %s waits, want %q in:\n%s", pod, reason, out)
		}
	}
	why("waits", "must end")
	// The end of the partitions does not help while all GPUs are cordoned.
	kubectlGPU(ctx, t, append([]string{"cordon"}, gpus...)...)
	must(t, cluster.Client.AppsV1().Deployments(namespace).Delete(ctx, "partitions", metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the partitions released", 60*time.Second, func(ctx context.Context) (bool, string) {
		out, err := cluster.KubectlGPU(ctx, "claims", "-n", namespace, "--no-headers")
		return err == nil && strings.Count(out, "\n") == 1, out
	}))
	createPartitionClaim(ctx, t, namespace, "small", `true`)
	createPod(ctx, t, namespace, "late", "small", nil)
	for _, name := range []string{"waits", "late"} {
		must(t, cluster.Eventually(ctx, "pod "+name+" to wait", 60*time.Second, func(ctx context.Context) (bool, string) {
			p, err := cluster.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
			return err == nil && env.Unschedulable(*p) != "", fmt.Sprint(err)
		}))
	}
	why("late", "cordoned by an administrator (kubectl gpu uncordon")
	kubectlGPU(ctx, t, append([]string{"uncordon"}, gpus...)...)
	waitRunning(ctx, t, namespace, "late")
	checkPod(ctx, t, waitRunning(ctx, t, namespace, "waits"))
}

func TestPartitions_External_PublishedUsedAndKept(t *testing.T) {
	ctx := testContext(t, everyDevice...)
	const address, name = "0000:1b:00.0", "gpu-0000-1b-00-0"
	must(t, cluster.Sim(ctx, "mig", "mode", address, "on"))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_ = cluster.Sim(ctx, "mig", "destroy", address, "all")
		must(t, cluster.Sim(ctx, "mig", "mode", address, "off"))
		must(t, cluster.WaitPublished(ctx, 8))
	})
	must(t, cluster.Sim(ctx, "mig", "create", address, "3g.40gb:4"))
	made := simulatedGPU(t, address).Instances[0].Computes[0].UUID
	must(t, cluster.Eventually(ctx, "the partition published as it is", 60*time.Second, func(ctx context.Context) (bool, string) {
		d, found := publishedDevice(ctx, t, "mig", name+"-mig-3g-40gb-4")
		uuid := d.Attributes["uuid"].StringValue
		if !found || uuid == nil {
			return false, fmt.Sprintf("found %v", found)
		}
		if *uuid != made {
			t.Errorf("published with UUID %s, it is %s", *uuid, made)
		}
		_, asWhole := publishedDevice(ctx, t, "gpu", name)
		_, colliding := publishedDevice(ctx, t, "mig", name+"-mig-1g-10gb-5")
		_, beside := publishedDevice(ctx, t, "mig", name+"-mig-1g-10gb-2")
		return !asWhole && !colliding && beside, fmt.Sprintf("whole %v, colliding %v, beside %v", asWhole, colliding, beside)
	}))
	namespace := createNamespace(ctx, t, nil)
	createPartitionClaim(ctx, t, namespace, "that-one", fmt.Sprintf("device.attributes['gpu.nvidia.com'].?uuid.orValue('') == '%s'", made))
	createPod(ctx, t, namespace, "uses-it", "that-one", nil)
	checkPod(ctx, t, waitRunning(ctx, t, namespace, "uses-it"))
	createPartitionClaim(ctx, t, namespace, "beside", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb' && device.attributes['gpu.nvidia.com'].parentUUID == '"+simulatedGPU(t, address).UUID+"'")
	createPod(ctx, t, namespace, "beside-it", "beside", nil)
	checkPod(ctx, t, waitRunning(ctx, t, namespace, "beside-it"))
	for _, p := range []string{"uses-it", "beside-it"} {
		must(t, cluster.Client.CoreV1().Pods(namespace).Delete(ctx, p, metav1.DeleteOptions{}))
	}
	must(t, cluster.Eventually(ctx, "only the external partition left", 60*time.Second, func(context.Context) (bool, string) {
		left := simulatedGPU(t, address).Instances
		return len(left) == 1, fmt.Sprintf("%+v", left)
	}))
	if left := simulatedGPU(t, address).Instances[0]; len(left.Computes) != 1 || left.Computes[0].UUID != made {
		t.Errorf("the external partition was %s and is %+v", made, left)
	}
}

func TestPartitions_DeletedByOthers_ReportedAndPodEnds(t *testing.T) {
	ctx := testContext(t)
	p := runDemo(ctx, t, "mig-one")[0]
	claims, err := cluster.Claims(ctx, p)
	must(t, err)
	d, err := gpu.ParseName(env.Results(claims[0])[0].Device)
	must(t, err)
	must(t, cluster.Sim(ctx, "mig", "vanish", d.PCIAddress, fmt.Sprint(d.Start)))
	must(t, cluster.Eventually(ctx, "the claim's status to say so", 90*time.Second, func(ctx context.Context) (bool, string) {
		c, err := cluster.Client.ResourceV1().ResourceClaims(p.Namespace).Get(ctx, claims[0].Name, metav1.GetOptions{})
		if err != nil || len(c.Status.Devices) == 0 || len(c.Status.Devices[0].Conditions) == 0 {
			return false, fmt.Sprint("no status ", err)
		}
		condition := c.Status.Devices[0].Conditions[0]
		return condition.Status == metav1.ConditionFalse && condition.Reason == "PartitionLost", condition.Reason + ": " + condition.Message
	}))
	waitEvent(ctx, t, p.Namespace, claims[0].Name, "partition is gone")
	waitEvent(ctx, t, p.Namespace, p.Name, "partition is gone")
}

func TestPartitions_MonitoringAgentUsesGPU_EventNamesIt(t *testing.T) {
	ctx := testContext(t)
	namespace := createNamespace(ctx, t, nil)
	for i := range 8 {
		// A GPU in MIG mode would not delay the scan.
		must(t, cluster.Sim(ctx, "mig", "mode", fmt.Sprint(i), "off"))
		must(t, cluster.Sim(ctx, "inject", "monitor", fmt.Sprint(i), "--name", "nv-hostengine"))
	}
	t.Cleanup(func() {
		for i := range 8 {
			_ = cluster.Sim(context.WithoutCancel(ctx), "inject", "unmonitor", fmt.Sprint(i))
		}
	})
	createPartitionClaim(ctx, t, namespace, "slice", "device.attributes['gpu.nvidia.com'].profile == '2g.20gb'")
	createPod(ctx, t, namespace, "held-up", "slice", nil)
	waitEvent(ctx, t, namespace, "held-up", "switch the MIG mode on", "monitoring agent")
	for i := range 8 {
		must(t, cluster.Sim(ctx, "inject", "unmonitor", fmt.Sprint(i)))
	}
	retryPods(ctx, t, namespace)
	checkPod(ctx, t, waitRunning(ctx, t, namespace, "held-up"))
}

func kubectlGPU(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := cluster.KubectlGPU(ctx, args...)
	must(t, err)
	return out
}

// checkKubectlGPU checks that the plugin of kubectl shows the devices of a namespace's claims, and no others. It returns
// the GPUs as the plugin names them.
func checkKubectlGPU(ctx context.Context, t *testing.T, namespace string) (gpus []string) {
	t.Helper()
	claims, err := cluster.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	var want, got []string
	layout := kubectlGPU(ctx, t, "layout")
	for _, c := range claims.Items {
		for _, r := range env.Results(c) {
			want = append(want, c.Name+" "+r.Device)
			if !strings.Contains(layout, namespace+"/"+c.Name) {
				t.Errorf("layout lacks claim %s:\n%s", c.Name, layout)
			}
		}
	}
	var list struct {
		Items []struct {
			Node, Name  string
			Allocations []struct {
				Device string
				Claim  struct{ Namespace, Name string }
			}
		}
	}
	must(t, json.Unmarshal([]byte(kubectlGPU(ctx, t, "ls", "-o", "json")), &list))
	for _, g := range list.Items {
		gpus = append(gpus, g.Node+"/"+g.Name)
		for _, a := range g.Allocations {
			if a.Claim.Namespace == namespace {
				got = append(got, a.Claim.Name+" "+a.Device)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(gpus) != 8 || !slices.Equal(want, got) {
		t.Errorf("ls shows %d GPUs and devices %v, want 8 and %v", len(gpus), got, want)
	}
	return gpus
}

// TestSlices_PredictedByBoard_EqualNode compares the prediction for the board with the slices that the node publishes.
func TestSlices_PredictedByBoard_EqualNode(t *testing.T) {
	ctx := testContext(t, everyDevice...)
	must(t, cluster.Eventually(ctx, "all devices published", 60*time.Second, func(ctx context.Context) (bool, string) {
		devices, err := cluster.Devices(ctx, "mig")
		return len(devices) >= 8*25, fmt.Sprintf("%d partitions, %v", len(devices), err)
	}))
	// devices returns the devices by name, without what describes the server and not its board, and the identities of GPUs.
	devices := func(args ...string) map[string]resourceapi.Device {
		var list resourceapi.ResourceSliceList
		_, objects, _ := strings.Cut(kubectlGPU(ctx, t, append([]string{"slices", "-o", "json"}, args...)...), "{") // The assumptions come first.
		must(t, json.Unmarshal([]byte("{"+objects), &list))
		out := map[string]resourceapi.Device{}
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				for _, name := range []resourceapi.QualifiedName{"machine", "mode", "uuid", "parentUUID"} {
					delete(d.Attributes, name)
				}
				for i := range d.Taints {
					d.Taints[i].TimeAdded = nil
				}
				out[d.Name] = d
			}
		}
		return out
	}
	want, got := devices(), devices("--board", "hgx-h100")
	if len(want) < 100 {
		t.Errorf("the node has only %d devices", len(want))
	}
	if !equality.Semantic.DeepEqual(want, got) {
		t.Errorf("(-node +prediction)\n%s", cmp.Diff(want, got))
	}
}
