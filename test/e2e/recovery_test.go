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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/e2e/env"
)

// sliceVersions returns the resource version of each published slice, so that any write shows.
func sliceVersions(ctx context.Context, t *testing.T) map[string]string {
	t.Helper()
	list, err := cluster.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver})
	must(t, err)
	out := map[string]string{}
	for _, slice := range list.Items {
		out[slice.Name] = slice.ResourceVersion
	}
	return out
}

// cdiSpecs lists the CDI specs of the driver on the node.
func cdiSpecs(ctx context.Context, t *testing.T) []string {
	t.Helper()
	out, err := cluster.OnNode(ctx, "find", "/var/run/cdi", "-name", "k8s."+env.Driver+"*.json")
	must(t, err)
	return strings.Fields(out)
}

// pluginPods waits for the DaemonSet's pods to be ready and lists them.
func pluginPods(ctx context.Context, t *testing.T, count int) []corev1.Pod {
	t.Helper()
	return driverPods(ctx, t, "kubelet-plugin", count)
}

// driverPods waits for the pods of one of the chart's DaemonSets to be ready and lists them.
func driverPods(ctx context.Context, t *testing.T, component string, count int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	must(t, cluster.Eventually(ctx, "the pod of "+component, 90*time.Second, func(ctx context.Context) (bool, string) {
		list, err := cluster.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
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

// checkServes checks that the plugin still works: a new pod gets a GPU.
func checkServes(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, p := range runDemo(ctx, t, "one-gpu") {
		checkPod(ctx, t, p)
	}
}

func TestCDISpecs_Deleted_WrittenAgain(t *testing.T) {
	ctx := testContext(t)
	pods := runDemo(ctx, t, "two-containers-one-claim")
	before := cdiSpecs(ctx, t)
	if len(before) == 0 {
		t.Fatal("no CDI spec while a pod with a GPU runs")
	}
	_, err := cluster.OnNode(ctx, "rm", "-rf", "/var/run/cdi")
	must(t, err)
	must(t, cluster.Eventually(ctx, "specs written again", 60*time.Second, func(ctx context.Context) (bool, string) {
		out, err := cluster.OnNode(ctx, "find", "/var/run/cdi", "-name", "k8s."+env.Driver+"*.json")
		if err != nil {
			return false, err.Error()
		}
		return len(strings.Fields(out)) == len(before), out
	}))
	// The runtime restarts an ended container with the CDI spec, without the plugin.
	p := pods[0]
	must(t, cluster.KillContainer(ctx, p, 0))
	must(t, cluster.Eventually(ctx, "container started again", 60*time.Second, func(ctx context.Context) (bool, string) {
		now, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		c := now.Status.ContainerStatuses[0]
		return c.RestartCount > 0 && c.State.Running != nil, fmt.Sprintf("%+v", c.State)
	}))
	checkPod(ctx, t, p)
}

func containerID(t *testing.T, p corev1.Pod, i int) string {
	t.Helper()
	_, id, ok := strings.Cut(p.Status.ContainerStatuses[i].ContainerID, "://")
	if !ok {
		t.Fatalf("no container ID in %+v", p.Status.ContainerStatuses[i])
	}
	return id
}

func TestPlugin_KubeletRestarts_PublishesAgainAndKeepsPods(t *testing.T) {
	ctx := testContext(t)
	pods := runDemo(ctx, t, "one-gpu")
	must(t, cluster.Node(ctx, "restart", "kubelet"))
	must(t, cluster.WaitPublished(ctx, 8))
	must(t, cluster.Eventually(ctx, "node ready", 60*time.Second, nodeReady))
	now, err := cluster.Client.CoreV1().Pods(pods[0].Namespace).Get(ctx, pods[0].Name, metav1.GetOptions{})
	must(t, err)
	if now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod is %s with %d restarts", now.Status.Phase, now.Status.ContainerStatuses[0].RestartCount)
	}
}

func nodeReady(ctx context.Context) (bool, string) {
	list, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
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

func TestPlugin_Restarts_WritesNoSliceAndKeepsPods(t *testing.T) {
	ctx := testContext(t)
	pods := runDemo(ctx, t, "two-pods-one-claim")
	before := sliceVersions(ctx, t)
	old := pluginPods(ctx, t, 1)[0]
	must(t, cluster.Client.CoreV1().Pods(env.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}))
	if p := pluginPods(ctx, t, 1)[0]; p.UID == old.UID {
		t.Fatal("the plugin was not replaced")
	}
	checkServes(ctx, t)
	for name, version := range sliceVersions(ctx, t) {
		if before[name] != version {
			t.Errorf("slice %s was written: version %s, was %s", name, version, before[name])
		}
	}
	for _, p := range pods {
		checkPod(ctx, t, p)
	}
}

func TestSlices_DeletedByOthers_PublishedAgain(t *testing.T) {
	ctx := testContext(t)
	must(t, cluster.Client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.driver=" + env.Driver}))
	must(t, cluster.WaitPublished(ctx, 8))
}

// TestPlugin_NodeReboots_PodsStartAgain has pods with whole GPUs, and with partitions, which are created again.
func TestPlugin_NodeReboots_PodsStartAgain(t *testing.T) {
	ctx := testContext(t)
	pods := append(runDemo(ctx, t, "mig-and-whole"), runDemo(ctx, t, "mig-mixed")...)
	must(t, cluster.Sim(ctx, "reboot"))
	must(t, cluster.Node(ctx, "reboot"))
	must(t, cluster.WaitPublished(ctx, 8))
	pluginPods(ctx, t, 1)
	owners := map[string]string{}
	for _, p := range pods {
		must(t, cluster.Eventually(ctx, p.Name+" started again", 120*time.Second, func(ctx context.Context) (bool, string) {
			q, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			p = *q
			return ready(p) && p.Status.ContainerStatuses[0].RestartCount > 0, "not restarted yet"
		}))
		checkPod(ctx, t, p)
		for claim, devices := range devicesByClaim(ctx, t, p) {
			for _, d := range devices {
				if owners[d] != "" {
					t.Errorf("%s is held by %s and %s", d, owners[d], claim)
				}
				owners[d] = claim
			}
		}
	}
}

func TestSlices_GPUsAndDriverComeAndGo_FollowThem(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() {
		_ = cluster.Sim(context.WithoutCancel(ctx), "inject", "add", "3")
		_ = cluster.Sim(context.WithoutCancel(ctx), "inject", "load")
	})
	must(t, cluster.Sim(ctx, "inject", "remove", "slot3"))
	must(t, cluster.WaitPublished(ctx, 7))
	must(t, cluster.Sim(ctx, "inject", "add", "slot3"))
	must(t, cluster.WaitPublished(ctx, 8))
	must(t, cluster.Sim(ctx, "inject", "unload"))
	must(t, cluster.WaitPublished(ctx, 0))
	must(t, cluster.Sim(ctx, "inject", "load"))
	must(t, cluster.WaitPublished(ctx, 8))
	checkServes(ctx, t)
}

// TestPlugin_StartsWhileOneGPUHangs_ServesOthers kills the plugin, and lets all calls of NVML for one GPU hang.
func TestPlugin_StartsWhileOneGPUHangs_ServesOthers(t *testing.T) {
	ctx := testContext(t)
	all, err := cluster.Devices(ctx, string(gpu.KindGPU))
	must(t, err)
	hangs := all[0].Name
	answer := func(ctx context.Context) {
		must(t, cluster.Sim(ctx, "inject", "clear"))
		must(t, cluster.WaitPublished(ctx, len(all)))
	}
	t.Cleanup(func() { answer(context.WithoutCancel(ctx)) })
	killPlugin(ctx, t, func() {
		must(t, cluster.Sim(ctx, "inject", "slow", "*", "--gpu", addressOf(t, hangs), "--latency", "1h"))
	})
	must(t, cluster.WaitPublished(ctx, len(all)-1))
	must(t, cluster.Eventually(ctx, "an Event with the GPU that hangs", 60*time.Second, func(ctx context.Context) (bool, string) {
		list, err := cluster.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node"})
		must(t, err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return strings.Contains(e.Message, hangs) && strings.Contains(e.Message, gpu.SilentText)
		}), "none"
	}))
	checkServes(ctx, t)
	must(t, cluster.Remove(ctx, findDemo(t, "one-gpu"))) // While the GPU hangs.
	answer(ctx)
	checkServes(ctx, t)
}

func TestSlices_AllocatedGPUVanishes_StaysPublishedAndTainted(t *testing.T) {
	ctx := testContext(t)
	pods := runDemo(ctx, t, "one-gpu")
	var device string
	for _, devices := range devicesByClaim(ctx, t, pods[0]) {
		device = devices[0]
	}
	minor, _ := minorAndUUID(t, device)
	gpu := fmt.Sprintf("slot%d", minor)
	t.Cleanup(func() {
		_ = cluster.Sim(context.WithoutCancel(ctx), "inject", "restore", gpu)
		triggerScan(t)
		must(t, cluster.Eventually(context.WithoutCancel(ctx), "untainted", 60*time.Second, func(ctx context.Context) (bool, string) {
			taints, found := taintCount(ctx, t, device)
			return found && taints == 0, fmt.Sprintf("%d taints", taints)
		}))
	})
	must(t, cluster.Sim(ctx, "inject", "lose", gpu))
	triggerScan(t)
	must(t, cluster.Eventually(ctx, "the lost GPU tainted, not withdrawn", 60*time.Second, func(ctx context.Context) (bool, string) {
		taints, found := taintCount(ctx, t, device)
		if !found {
			t.Fatalf("%s was withdrawn while a claim holds it", device)
		}
		return taints > 0, "no taint yet"
	}))
}

func taintCount(ctx context.Context, t *testing.T, device string) (int, bool) {
	t.Helper()
	devices, err := cluster.Devices(ctx, "gpu")
	must(t, err)
	for _, d := range devices {
		if d.Name == device {
			return len(d.Taints), true
		}
	}
	return 0, false
}

// replaced disrupts the node while all its pods, with whole GPUs and with partitions, are replaced, so that Prepare and Unprepare are
// in progress. Each new pod must have what its claim says, and no claim may have a record too many.
func replaced(ctx context.Context, t *testing.T, disrupt func() error) {
	t.Helper()
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	// New partitions can be of other GPUs than the old ones, so three GPUs are left for them.
	sets := []struct {
		class    string
		replicas int
	}{{env.Driver, 3}, {"mig-1g.10gb.nvidia.com", 14}}
	var namespaces []string
	var old []map[string]corev1.Pod
	for _, s := range sets {
		namespaces = append(namespaces, createNamespace(ctx, t, nil))
		deploy(ctx, t, namespaces[len(namespaces)-1], s.class, int32(s.replicas))
	}
	for i, s := range sets {
		old = append(old, waitReady(ctx, t, namespaces[i], s.replicas, nil))
	}
	for i := range sets {
		must(t, cluster.Client.CoreV1().Pods(namespaces[i]).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
	must(t, disrupt())
	for i := range sets {
		retryPods(ctx, t, namespaces[i])
	}
	records := 0
	for i, s := range sets {
		for _, p := range waitReady(ctx, t, namespaces[i], s.replicas, old[i]) {
			checkPod(ctx, t, p)
		}
		records += s.replicas
	}
	pluginPods(ctx, t, 1)
	checkRecords(ctx, t, records)
}

func TestPlugin_Killed_LosesNoClaim(t *testing.T) {
	ctx := testContext(t)
	replaced(ctx, t, func() error {
		p := pluginPods(ctx, t, 1)[0]
		must(t, cluster.KillContainer(ctx, p, 0))
		return cluster.Eventually(ctx, "the plugin started again", 120*time.Second, func(ctx context.Context) (bool, string) {
			now, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			c := now.Status.ContainerStatuses[0]
			return c.Ready && c.RestartCount > p.Status.ContainerStatuses[0].RestartCount, fmt.Sprintf("%+v", c.State)
		})
	})
}

func TestPlugin_RollingUpdateUnderLoad_LosesNoClaim(t *testing.T) {
	ctx := testContext(t)
	replaced(ctx, t, func() error { return cluster.Roll(ctx) })
}
