//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

// slices renders what is published, resource versions left in so that any write shows.
func published(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	list, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver})
	must(t, err)
	out := map[string]string{}
	for _, slice := range list.Items {
		out[slice.Name] = slice.ResourceVersion
	}
	return out
}

// specs lists the CDI specs of the driver on the node.
func specs(ctx context.Context, t *testing.T) []string {
	t.Helper()
	out, err := s.OnNode(ctx, "find", "/var/run/cdi", "-name", "k8s."+env.Driver+"*.json")
	must(t, err)
	return strings.Fields(out)
}

// pluginPods waits for the DaemonSet's pods to be ready and lists them.
func pluginPods(ctx context.Context, t *testing.T, count int) []corev1.Pod {
	t.Helper()
	return driverPods(ctx, t, "kubelet-plugin", count)
}

// driverPods does so for one of the chart's DaemonSets.
func driverPods(ctx context.Context, t *testing.T, component string, count int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	must(t, s.Wait(ctx, "the pod of "+component, 90*time.Second, func(ctx context.Context) (bool, string) {
		list, err := s.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
		if err != nil {
			return false, err.Error()
		}
		pods = nil
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil && ready(p) {
				pods = append(pods, p)
			}
		}
		return len(pods) == count && len(list.Items) == count, fmt.Sprintf("%d of %d ready", len(pods), len(list.Items))
	}))
	return pods
}

func ready(p corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// another proves that the node still serves: a new pod gets a GPU.
func another(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, p := range play(ctx, t, "one-gpu") {
		inside(ctx, t, p)
	}
}

func TestDeletedCDISpecsAreWrittenAgain(t *testing.T) {
	ctx := limited(t)
	pods := play(ctx, t, "two-containers-one-claim")
	before := specs(ctx, t)
	if len(before) == 0 {
		t.Fatal("no CDI spec while a pod with a GPU runs")
	}
	_, err := s.OnNode(ctx, "rm", "-rf", "/var/run/cdi")
	must(t, err)
	must(t, s.Wait(ctx, "specs written again", 30*time.Second, func(ctx context.Context) (bool, string) {
		out, err := s.OnNode(ctx, "find", "/var/run/cdi", "-name", "k8s."+env.Driver+"*.json")
		if err != nil {
			return false, err.Error()
		}
		return len(strings.Fields(out)) == len(before), out
	}))
	// A container that ends now is started again by the runtime alone, from the spec.
	p := pods[0]
	_, err = s.OnNode(ctx, "ctr", "--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", containerID(t, p, 0))
	must(t, err)
	must(t, s.Wait(ctx, "container started again", 60*time.Second, func(ctx context.Context) (bool, string) {
		now, err := s.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		c := now.Status.ContainerStatuses[0]
		return c.RestartCount > 0 && c.State.Running != nil, fmt.Sprintf("%+v", c.State)
	}))
	inside(ctx, t, p)
}

func containerID(t *testing.T, p corev1.Pod, i int) string {
	t.Helper()
	_, id, ok := strings.Cut(p.Status.ContainerStatuses[i].ContainerID, "://")
	if !ok {
		t.Fatalf("no container ID in %+v", p.Status.ContainerStatuses[i])
	}
	return id
}

func TestKubeletRestartPublishesAgainAndKeepsPods(t *testing.T) {
	ctx := limited(t)
	pods := play(ctx, t, "one-gpu")
	must(t, s.Node(ctx, "restart", "kubelet"))
	must(t, s.WaitPublished(ctx, 8))
	must(t, s.Wait(ctx, "node ready", 60*time.Second, nodeReady))
	now, err := s.Client.CoreV1().Pods(pods[0].Namespace).Get(ctx, pods[0].Name, metav1.GetOptions{})
	must(t, err)
	if now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod is %s with %d restarts", now.Status.Phase, now.Status.ContainerStatuses[0].RestartCount)
	}
}

func nodeReady(ctx context.Context) (bool, string) {
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err.Error()
	}
	for _, c := range list.Items[0].Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "no Ready condition"
}

func TestPluginRestartWritesNoSliceAndKeepsPods(t *testing.T) {
	ctx := limited(t)
	pods := play(ctx, t, "two-pods-one-claim")
	before := published(ctx, t)
	old := pluginPods(ctx, t, 1)[0]
	must(t, s.Client.CoreV1().Pods(env.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}))
	if p := pluginPods(ctx, t, 1)[0]; p.UID == old.UID {
		t.Fatal("the plugin was not replaced")
	}
	another(ctx, t)
	for name, version := range published(ctx, t) {
		if before[name] != version {
			t.Errorf("slice %s was written: version %s, was %s", name, version, before[name])
		}
	}
	for _, p := range pods {
		inside(ctx, t, p)
	}
}

func TestForeignDeletionOfSlicesIsRepaired(t *testing.T) {
	ctx := limited(t)
	must(t, s.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver}))
	must(t, s.WaitPublished(ctx, 8))
}

func TestNodeRebootBringsPodsBack(t *testing.T) {
	ctx := limited(t)
	pods := play(ctx, t, "deployment-of-8")
	must(t, s.Sim(ctx, "reboot"))
	must(t, s.Node(ctx, "reboot"))
	must(t, s.WaitPublished(ctx, 8))
	pluginPods(ctx, t, 1)
	now, err := s.Pods(ctx, pods[0].Namespace, len(pods))
	must(t, err)
	owners := map[string]string{}
	for _, p := range now {
		// What a kubelet could not prepare, for the plugin was not there yet, it tries again after 60 to 90 s.
		must(t, s.Wait(ctx, p.Name+" started again", 120*time.Second, func(ctx context.Context) (bool, string) {
			q, err := s.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return ready(*q) && q.Status.ContainerStatuses[0].RestartCount > 0, "not restarted yet"
		}))
		inside(ctx, t, p)
		for claim, devices := range exclusive(ctx, t, p) {
			for _, d := range devices {
				if owners[d] != "" {
					t.Errorf("%s is held by %s and %s", d, owners[d], claim)
				}
				owners[d] = claim
			}
		}
	}
}

func TestGPUsAndDriverComeAndGo(t *testing.T) {
	ctx := limited(t)
	t.Cleanup(func() {
		_ = s.Sim(context.WithoutCancel(ctx), "inject", "add", "3")
		_ = s.Sim(context.WithoutCancel(ctx), "inject", "load")
	})
	must(t, s.Sim(ctx, "inject", "remove", "slot3"))
	must(t, s.WaitPublished(ctx, 7))
	must(t, s.Sim(ctx, "inject", "add", "slot3"))
	must(t, s.WaitPublished(ctx, 8))
	must(t, s.Sim(ctx, "inject", "unload"))
	must(t, s.WaitPublished(ctx, 0))
	must(t, s.Sim(ctx, "inject", "load"))
	must(t, s.WaitPublished(ctx, 8))
	another(ctx, t)
}

func TestAllocatedGPUThatVanishesStaysPublished(t *testing.T) {
	ctx := limited(t)
	pods := play(ctx, t, "one-gpu")
	var device string
	for _, devices := range exclusive(ctx, t, pods[0]) {
		device = devices[0]
	}
	minor, _ := hardware(t, device)
	gpu := fmt.Sprintf("slot%d", minor)
	t.Cleanup(func() {
		_ = s.Sim(context.WithoutCancel(ctx), "inject", "restore", gpu)
		prompt(t)
		must(t, s.Wait(context.WithoutCancel(ctx), "untainted", 60*time.Second, func(ctx context.Context) (bool, string) {
			taints, found := taintsOf(ctx, t, device)
			return found && taints == 0, fmt.Sprintf("%d taints", taints)
		}))
	})
	must(t, s.Sim(ctx, "inject", "lose", gpu))
	prompt(t)
	must(t, s.Wait(ctx, "the lost GPU tainted, not withdrawn", 60*time.Second, func(ctx context.Context) (bool, string) {
		taints, found := taintsOf(ctx, t, device)
		if !found {
			t.Fatalf("%s was withdrawn while a claim holds it", device)
		}
		return taints > 0, "no taint yet"
	}))
}

func taintsOf(ctx context.Context, t *testing.T, device string) (int, bool) {
	t.Helper()
	devices, err := s.Devices(ctx, "gpu")
	must(t, err)
	for _, d := range devices {
		if d.Name == device {
			return len(d.Taints), true
		}
	}
	return 0, false
}

func TestKilledPluginLosesNoClaim(t *testing.T) {
	ctx := limited(t)
	demo := play(ctx, t, "deployment-of-8")
	// Kill it while pods are replaced, so that Prepare and Unprepare are under way.
	for _, p := range demo {
		must(t, s.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	p := pluginPods(ctx, t, 1)[0]
	_, err := s.OnNode(ctx, "ctr", "--address", "/run/containerd/containerd.sock", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", containerID(t, p, 0))
	must(t, err)
	pods, err := s.Pods(ctx, demo[0].Namespace, 8)
	must(t, err)
	for _, p := range pods {
		inside(ctx, t, p)
	}
}

func TestRollingUpdateUnderLoadLosesNoClaim(t *testing.T) {
	ctx := limited(t)
	demo := play(ctx, t, "deployment-of-8")
	done := make(chan error, 1)
	go func() { done <- s.Helm(ctx, "--set", "logVerbosity=3") }()
	for _, p := range demo {
		must(t, s.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	must(t, <-done)
	pods, err := s.Pods(ctx, demo[0].Namespace, 8)
	must(t, err)
	for _, p := range pods {
		inside(ctx, t, p)
	}
	pluginPods(ctx, t, 1)
}
