//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/stage"
)

// remembered lists what the plugin has on disk: claims, and GPUs whose mode it has to put back.
func remembered(ctx context.Context, t *testing.T) (claims, gpus []string) {
	t.Helper()
	dir := "/var/lib/kubelet/plugins/" + stage.Driver + "/state"
	out, err := s.OnNode(ctx, "find", dir+"/records", dir+"/gpus", "-type", "f")
	must(t, err)
	for _, file := range strings.Fields(out) {
		name := path.Base(file)
		switch {
		case !strings.HasSuffix(name, ".json"):
		case strings.HasPrefix(file, dir+"/gpus/"):
			gpus = append(gpus, name)
		default:
			claims = append(claims, name)
		}
	}
	return claims, gpus
}

// switched lists the GPUs whose MIG mode is on.
func switched(t *testing.T) []string {
	t.Helper()
	state, err := engine.Open(s.Root, nil).State()
	must(t, err)
	var out []string
	for _, g := range state.GPUs {
		if g.MIGEnabled || g.MIGPending {
			out = append(out, g.Address)
		}
	}
	return out
}

func TestNothingIsLeftOfPartitionsAndGPUsAreWholeAgain(t *testing.T) {
	t.Run("partitions", func(t *testing.T) {
		ctx := limited(t)
		play(ctx, t, "mig-and-whole")
		if claims, gpus := remembered(ctx, t); len(claims) != 3 || len(gpus) == 0 || len(gpus) != len(switched(t)) {
			t.Errorf("3 claims are prepared and GPUs %v are in MIG mode; records of claims %v, of GPUs %v", switched(t), claims, gpus)
		}
	})
	ctx := limited(t)
	whole(ctx, t)
	claims, gpus := remembered(ctx, t)
	if on := switched(t); len(claims) != 0 || len(gpus) != len(on) {
		t.Errorf("no claim is prepared and GPUs %v are in MIG mode; records of claims %v, of GPUs %v", on, claims, gpus)
	}
	// Who wants the GPUs whole gets them out of the mode.
	for _, p := range play(ctx, t, "eight-gpus") {
		inside(ctx, t, p)
	}
	if _, gpus := remembered(ctx, t); len(gpus) != 0 || len(switched(t)) != 0 {
		t.Errorf("all GPUs are in use whole; in MIG mode are %v, records of GPUs %v", switched(t), gpus)
	}
}

func TestRollingUpdateWhilePartitionsComeAndGo(t *testing.T) {
	const replicas = 14
	ctx := limited(t)
	t.Cleanup(func() { whole(context.WithoutCancel(ctx), t) })
	namespace := ground(ctx, t, nil)
	small(ctx, t, namespace, replicas)
	old := up(ctx, t, namespace, replicas, nil)
	done := make(chan error, 1)
	go func() { done <- s.Helm(ctx, "--set", "logVerbosity=4") }()
	for name := range old {
		must(t, s.Client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	}
	must(t, <-done)
	for _, p := range up(ctx, t, namespace, replicas, old) {
		inside(ctx, t, p)
	}
	pluginPods(ctx, t, 1)
	if claims, gpus := remembered(ctx, t); len(claims) != replicas || len(gpus) != len(switched(t)) {
		t.Errorf("%d claims are prepared and GPUs %v are in MIG mode; %d records of claims, of GPUs %v", replicas, switched(t), len(claims), gpus)
	}
}

// up waits until so many pods are ready, none of them an old one and none besides.
func up(ctx context.Context, t *testing.T, namespace string, count int, old map[string]corev1.Pod) map[string]corev1.Pod {
	t.Helper()
	var out map[string]corev1.Pod
	must(t, s.Wait(ctx, fmt.Sprintf("%d pods", count), 120*time.Second, func(ctx context.Context) (bool, string) {
		list, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		out = map[string]corev1.Pod{}
		for _, p := range list.Items {
			if _, is := old[p.Name]; !is && ready(p) && p.DeletionTimestamp == nil {
				out[p.Name] = p
			}
		}
		return len(out) == count && len(list.Items) == count, fmt.Sprintf("%d of %d are new and ready", len(out), len(list.Items))
	}))
	return out
}

// small deploys pods of a 1g.10gb each.
func small(ctx context.Context, t *testing.T, namespace string, replicas int32) {
	t.Helper()
	_, err := s.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "mig-1g.10gb.nvidia.com"}}},
		}}},
	}, metav1.CreateOptions{})
	must(t, err)
	template, grace, labels := "small", int64(1), map[string]string{"app": "small"}
	_, err = s.Client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "small"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: &grace,
				ResourceClaims:                []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}},
				Containers: []corev1.Container{{
					Name: "probe", Image: probeImage(t), ImagePullPolicy: corev1.PullNever, Args: []string{"look", "--hold"},
					Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
				}},
			}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}
