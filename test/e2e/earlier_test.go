//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/env"
)

const pluginDaemonSet = "daemonset/" + env.Release + "-kubelet-plugin"

// rollout changes the plugin's DaemonSet by kubectl, and waits for the new pod. Then it restarts the kubelet, which prepares
// the claims of all running pods again.
func rollout(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	_, err := cluster.Kubectl(ctx, append([]string{"-n", env.Namespace}, args...)...)
	must(t, err)
	_, err = cluster.Kubectl(ctx, "-n", env.Namespace, "rollout", "status", pluginDaemonSet, "--timeout=120s")
	must(t, err)
	must(t, cluster.Node(ctx, "restart", "kubelet"))
	must(t, cluster.Eventually(ctx, "node ready", 60*time.Second, nodeReady))
	pluginPods(ctx, t, 1)
}

// seen returns the GPUs that containers see, by container.
func seen(ctx context.Context, t *testing.T, pods []corev1.Pod) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, p := range pods {
		checkPod(ctx, t, p)
		for _, c := range p.Spec.Containers {
			view, err := cluster.Inspect(ctx, p.Namespace, p.Name, c.Name)
			must(t, err)
			out[p.Name+"/"+c.Name] = slices.Concat(view.GPUs(), view.Capabilities(), view.UUIDs())
		}
	}
	return out
}

// restart ends all containers of pods, and waits until the kubelet has started them again.
func restart(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	get := func(p corev1.Pod) *corev1.Pod {
		now, err := cluster.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		must(t, err)
		if now.UID != p.UID || now.Status.Phase != corev1.PodRunning {
			t.Fatalf("pod %s is another one, or %s", p.Name, now.Status.Phase)
		}
		return now
	}
	var before []*corev1.Pod
	for _, p := range pods {
		before = append(before, get(p))
		for i := range p.Status.ContainerStatuses {
			must(t, cluster.KillContainer(ctx, *before[len(before)-1], i))
		}
	}
	for _, p := range before {
		must(t, cluster.Eventually(ctx, "containers of "+p.Name+" started again", 90*time.Second, func(context.Context) (bool, string) {
			for i, s := range get(*p).Status.ContainerStatuses {
				if s.RestartCount <= p.Status.ContainerStatuses[i].RestartCount || s.State.Running == nil {
					return false, fmt.Sprintf("%+v", s.State)
				}
			}
			return true, ""
		}))
	}
}

// TestPlugin_EarlierReleaseAndBack_KeepsPods downgrades the plugin under pods, upgrades it again, and ends pods of each version
// with the other.
func TestPlugin_EarlierReleaseAndBack_KeepsPods(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
	programs, err := cluster.EarlierPrograms(ctx)
	must(t, err)
	// That release finds libcuda.so.1 by the dynamic linker only, and publishes no device without CUDA's version.
	earlier := fmt.Sprintf(`{"spec": {"template": {"spec": {
		"containers": [{"name": "gpus", "command": ["/earlier/dra-kubelet-plugin"],
			"env": [{"name": "LD_LIBRARY_PATH", "value": "/driver-root/usr/lib/x86_64-linux-gnu"}], "volumeMounts": [{"name": "earlier", "mountPath": "/earlier"}]}],
		"volumes": [{"name": "earlier", "hostPath": {"path": %q}}]}}}}`, programs)
	keep := func(pods []corev1.Pod, want map[string][]string) {
		t.Helper()
		restart(ctx, t, pods)
		got := seen(ctx, t, pods)
		for name, gpus := range want {
			if len(gpus) == 0 || !slices.Equal(got[name], gpus) {
				t.Errorf("%s sees %v, and saw %v before", name, got[name], gpus)
			}
		}
	}

	today := slices.Concat(runDemo(ctx, t, "nvlink-fill"), runDemo(ctx, t, "sharing-time-slicing"))
	runDemo(ctx, t, "mig-one")
	before := seen(ctx, t, today)
	downgraded := true
	t.Cleanup(func() {
		if downgraded {
			rollout(context.WithoutCancel(ctx), t, "rollout", "undo", pluginDaemonSet)
		}
	})
	t.Cleanup(func() {
		if t.Failed() {
			log, err := cluster.Kubectl(context.WithoutCancel(ctx), "-n", env.Namespace, "logs", "-l", "app.kubernetes.io/component=kubelet-plugin", "--tail=60")
			t.Logf("%v: the plugin's log:\n%s", err, log)
		}
	})
	rollout(ctx, t, "patch", pluginDaemonSet, "--patch", earlier)
	keep(today, before)
	must(t, cluster.Remove(ctx, findDemo(t, "mig-one")))
	made := runDemo(ctx, t, "mig-extended-resource")
	inMade := seen(ctx, t, made)

	downgraded = false
	rollout(ctx, t, "rollout", "undo", pluginDaemonSet)
	keep(today, before)
	keep(made, inMade)
}
