//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

// whole waits until no GPU is cut.
func whole(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, s.Wait(ctx, "no partition left", 60*time.Second, func(context.Context) (bool, string) {
		state, err := engine.Open(s.Root, nil).State()
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

// onOneGPU checks how many devices a demo's pods hold, and that they are of one GPU.
func onOneGPU(want int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		total(want)(ctx, t, pods)
		gpus := map[string]bool{}
		for _, p := range pods {
			for _, devices := range exclusive(ctx, t, p) {
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

// drained checks that every job of a queue ran on a partition of its own.
func drained(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	done, err := s.Pods(ctx, pods[0].Namespace, 12)
	must(t, err)
	seen := map[string]bool{}
	for _, p := range done {
		view, err := s.Look(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
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

// device finds a published device by name.
func device(ctx context.Context, t *testing.T, kind, name string) (resourceapi.Device, bool) {
	t.Helper()
	devices, err := s.Devices(ctx, kind)
	must(t, err)
	for _, d := range devices {
		if d.Name == name {
			return d, true
		}
	}
	return resourceapi.Device{}, false
}

// migClaim makes a claim for a partition that a CEL expression selects.
func migClaim(ctx context.Context, t *testing.T, namespace, name, expression string) {
	t.Helper()
	_, err := s.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
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

// runs waits until a pod is ready and gives it.
func runs(ctx context.Context, t *testing.T, namespace, name string) corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	must(t, s.Wait(ctx, "pod "+name, 90*time.Second, func(ctx context.Context) (bool, string) {
		var err error
		if pod, err = s.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err.Error()
		}
		return ready(*pod), string(pod.Status.Phase) + " " + env.Unschedulable(*pod)
	}))
	return *pod
}

func TestWholeGPUWaitsUntilPartitionsGo(t *testing.T) {
	ctx := limited(t)
	namespace := ground(ctx, t, nil)
	// A 4g.40gb fits once on a GPU: each of the eight is cut.
	partitions(ctx, t, namespace, "4g.40gb", 8)
	up(ctx, t, namespace, 8, nil)
	claim(ctx, t, namespace, "one", "")
	pod(ctx, t, namespace, "waits", "one", nil)
	must(t, s.Wait(ctx, "the pod to wait", 60*time.Second, func(ctx context.Context) (bool, string) {
		p, err := s.Client.CoreV1().Pods(namespace).Get(ctx, "waits", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return env.Unschedulable(*p) != "", string(p.Status.Phase)
	}))
	// Nothing but the end of the partitions is done for the pod.
	must(t, s.Client.AppsV1().Deployments(namespace).Delete(ctx, "partitions", metav1.DeleteOptions{}))
	inside(ctx, t, runs(ctx, t, namespace, "waits"))
}

func TestForeignPartitionIsPublishedUsedAndLeftAlone(t *testing.T) {
	ctx := limited(t)
	const address, name = "0000:1b:00.0", "gpu-0000-1b-00-0"
	must(t, s.Sim(ctx, "mig", "mode", address, "on"))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_ = s.Sim(ctx, "mig", "destroy", address, "all")
		must(t, s.Sim(ctx, "mig", "mode", address, "off"))
		must(t, s.WaitPublished(ctx, 8))
	})
	must(t, s.Sim(ctx, "mig", "create", address, "3g.40gb:4"))
	made := simulated(t, address).Instances[0].Computes[0].UUID
	must(t, s.Wait(ctx, "the partition published as it is", 60*time.Second, func(ctx context.Context) (bool, string) {
		d, found := device(ctx, t, "mig", name+"-mig-3g-40gb-4")
		uuid := d.Attributes["uuid"].StringValue
		if !found || uuid == nil {
			return false, fmt.Sprintf("found %v", found)
		}
		if *uuid != made {
			t.Errorf("published with UUID %s, it is %s", *uuid, made)
		}
		_, asWhole := device(ctx, t, "gpu", name)
		_, colliding := device(ctx, t, "mig", name+"-mig-1g-10gb-5")
		_, beside := device(ctx, t, "mig", name+"-mig-1g-10gb-2")
		return !asWhole && !colliding && beside, fmt.Sprintf("whole %v, colliding %v, beside %v", asWhole, colliding, beside)
	}))
	namespace := ground(ctx, t, nil)
	migClaim(ctx, t, namespace, "that-one", fmt.Sprintf("device.attributes['gpu.nvidia.com'].?uuid.orValue('') == '%s'", made))
	pod(ctx, t, namespace, "uses-it", "that-one", nil)
	inside(ctx, t, runs(ctx, t, namespace, "uses-it"))
	migClaim(ctx, t, namespace, "beside", "device.attributes['gpu.nvidia.com'].profile == '1g.10gb' && device.attributes['gpu.nvidia.com'].parentUUID == '"+simulated(t, address).UUID+"'")
	pod(ctx, t, namespace, "beside-it", "beside", nil)
	inside(ctx, t, runs(ctx, t, namespace, "beside-it"))
	for _, p := range []string{"uses-it", "beside-it"} {
		must(t, s.Client.CoreV1().Pods(namespace).Delete(ctx, p, metav1.DeleteOptions{}))
	}
	must(t, s.Wait(ctx, "only the foreign partition left", 60*time.Second, func(context.Context) (bool, string) {
		left := simulated(t, address).Instances
		return len(left) == 1, fmt.Sprintf("%+v", left)
	}))
	if left := simulated(t, address).Instances[0]; len(left.Computes) != 1 || left.Computes[0].UUID != made {
		t.Errorf("the foreign partition was %s and is %+v", made, left)
	}
}

func TestPartitionThatVanishesIsToldAndItsPodCanEnd(t *testing.T) {
	ctx := limited(t)
	p := play(ctx, t, "mig-one")[0]
	claims, err := s.Claims(ctx, p)
	must(t, err)
	d, err := gpu.ParseName(env.Results(claims[0])[0].Device)
	must(t, err)
	must(t, s.Sim(ctx, "mig", "vanish", d.PCIAddress, fmt.Sprint(d.Start)))
	must(t, s.Wait(ctx, "the claim's status to say so", 90*time.Second, func(ctx context.Context) (bool, string) {
		c, err := s.Client.ResourceV1().ResourceClaims(p.Namespace).Get(ctx, claims[0].Name, metav1.GetOptions{})
		if err != nil || len(c.Status.Devices) == 0 || len(c.Status.Devices[0].Conditions) == 0 {
			return false, fmt.Sprint("no status ", err)
		}
		condition := c.Status.Devices[0].Conditions[0]
		return condition.Status == metav1.ConditionFalse && condition.Reason == "PartitionLost", condition.Reason + ": " + condition.Message
	}))
	event(ctx, t, p.Namespace, claims[0].Name, "partition is gone")
	event(ctx, t, p.Namespace, p.Name, "partition is gone")
}

func TestMonitoringAgentHoldsACutUpAndIsNamed(t *testing.T) {
	ctx := limited(t)
	namespace := ground(ctx, t, nil)
	for i := range 8 {
		// A GPU whose mode is on already would not be held up.
		must(t, s.Sim(ctx, "mig", "mode", fmt.Sprint(i), "off"))
		must(t, s.Sim(ctx, "inject", "monitor", fmt.Sprint(i), "--name", "nv-hostengine"))
	}
	t.Cleanup(func() {
		for i := range 8 {
			_ = s.Sim(context.WithoutCancel(ctx), "inject", "unmonitor", fmt.Sprint(i))
		}
	})
	migClaim(ctx, t, namespace, "slice", "device.attributes['gpu.nvidia.com'].profile == '2g.20gb'")
	pod(ctx, t, namespace, "held-up", "slice", nil)
	event(ctx, t, namespace, "held-up", "switch the MIG mode on", "monitoring agent")
	for i := range 8 {
		must(t, s.Sim(ctx, "inject", "unmonitor", fmt.Sprint(i)))
	}
	nudge(ctx, t, namespace)
	inside(ctx, t, runs(ctx, t, namespace, "held-up"))
}

func TestPartitionsAreMadeAgainAfterAReboot(t *testing.T) {
	ctx := limited(t)
	pods := play(ctx, t, "mig-mixed")
	must(t, s.Sim(ctx, "reboot"))
	must(t, s.Node(ctx, "reboot"))
	must(t, s.WaitPublished(ctx, 8))
	pluginPods(ctx, t, 1)
	must(t, s.Wait(ctx, "the pod to start again", 120*time.Second, func(ctx context.Context) (bool, string) {
		p, err := s.Client.CoreV1().Pods(pods[0].Namespace).Get(ctx, pods[0].Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return ready(*p) && p.Status.ContainerStatuses[0].RestartCount > 0, "not restarted yet"
	}))
	inside(ctx, t, runs(ctx, t, pods[0].Namespace, pods[0].Name))
}

func TestKilledPluginLeaksAndLosesNoPartition(t *testing.T) {
	const replicas = 21
	ctx := limited(t)
	t.Cleanup(func() { whole(context.WithoutCancel(ctx), t) })
	namespace := ground(ctx, t, nil)
	partitions(ctx, t, namespace, "1g.10gb", replicas)
	old := up(ctx, t, namespace, replicas, nil)
	// Kill it while pods are replaced, so that partitions are being made and taken away.
	for name := range old {
		must(t, s.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	}
	p := pluginPods(ctx, t, 1)[0]
	_, err := s.OnNode(ctx, "ctr", "--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", containerID(t, p, 0))
	must(t, err)
	must(t, s.Wait(ctx, "the plugin started again", 60*time.Second, func(ctx context.Context) (bool, string) {
		now, err := s.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		c := now.Status.ContainerStatuses[0]
		return c.Ready && c.RestartCount > p.Status.ContainerStatuses[0].RestartCount, fmt.Sprintf("%+v", c.State)
	}))
	nudge(ctx, t, namespace)
	for _, p := range up(ctx, t, namespace, replicas, old) {
		inside(ctx, t, p)
	}
	ours(ctx, t, replicas)
}
