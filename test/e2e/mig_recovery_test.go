//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/env"
)

// storedRecords lists the plugin's files: claims, and GPUs with a setting that it must restore. Attempts to reset GPUs stay
// noted.
func storedRecords(ctx context.Context, t *testing.T) (claims, gpus []string) {
	t.Helper()
	dir := "/var/lib/kubelet/plugins/" + env.Driver + "/state"
	out, err := cluster.OnNode(ctx, "find", dir+"/records", dir+"/gpus", "-type", "f")
	must(t, err)
	for _, file := range strings.Fields(out) {
		name := path.Base(file)
		switch {
		case !strings.HasSuffix(name, ".json"):
		case strings.HasPrefix(file, dir+"/gpus/reset/"):
		case strings.HasPrefix(file, dir+"/gpus/"):
			gpus = append(gpus, name)
		default:
			claims = append(claims, name)
		}
	}
	return claims, gpus
}

// gpusInMIGMode lists the GPUs whose MIG mode is on.
func gpusInMIGMode(t *testing.T) []string {
	t.Helper()
	state, err := engine.Open(cluster.Root, nil).State()
	must(t, err)
	var out []string
	for _, g := range state.GPUs {
		if g.MIGEnabled || g.MIGPending {
			out = append(out, g.Address)
		}
	}
	return out
}

// checkRecords checks the number of claims with records, and that each GPU in MIG mode has a record to restore it.
// Records of modes that ended with the node's last boot may also exist.
func checkRecords(ctx context.Context, t *testing.T, prepared int) {
	t.Helper()
	claims, gpus := storedRecords(ctx, t)
	if len(claims) != prepared {
		t.Errorf("%d claims are prepared and %d have records", prepared, len(claims))
	}
	for _, address := range gpusInMIGMode(t) {
		if !slices.Contains(gpus, address+".json") {
			t.Errorf("GPU %s is in MIG mode and has no record among %v", address, gpus)
		}
	}
}

// retryPods makes the kubelet sync pods that are not ready. The kubelet repeats a failed Prepare only after its
// resync interval of a minute or more, but syncs a changed pod at once.
func retryPods(ctx context.Context, t *testing.T, namespace string) {
	t.Helper()
	list, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, p := range list.Items {
		if ready(p) || p.DeletionTimestamp != nil {
			continue
		}
		_, err := cluster.Client.CoreV1().Pods(namespace).Patch(ctx, p.Name, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"e2e":"nudge"}}}`), metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			must(t, err)
		}
	}
}

func TestPartitions_PodsEnd_GPUsAreWholeAgain(t *testing.T) {
	t.Run("partitions", func(t *testing.T) {
		ctx := testContext(t)
		runDemo(ctx, t, "mig-and-whole")
		checkRecords(ctx, t, 3)
	})
	ctx := testContext(t)
	checkClean(ctx, t)
	checkRecords(ctx, t, 0)
	// Claims for whole GPUs switch MIG off.
	for _, p := range runDemo(ctx, t, "eight-gpus") {
		checkPod(ctx, t, p)
	}
	if _, gpus := storedRecords(ctx, t); len(gpus) != 0 || len(gpusInMIGMode(t)) != 0 {
		t.Errorf("all GPUs are in use whole; in MIG mode are %v, records of GPUs %v", gpusInMIGMode(t), gpus)
	}
}

// waitReady waits until a namespace has exactly count pods, all of them ready and none of them old.
func waitReady(ctx context.Context, t *testing.T, namespace string, count int, old map[string]corev1.Pod) map[string]corev1.Pod {
	t.Helper()
	var out map[string]corev1.Pod
	must(t, cluster.Eventually(ctx, fmt.Sprintf("%d pods", count), 120*time.Second, func(ctx context.Context) (bool, string) {
		list, err := cluster.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
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

// deployPartitions creates a Deployment of pods with one partition each.
func deployPartitions(ctx context.Context, t *testing.T, namespace, profile string, replicas int32) {
	t.Helper()
	deploy(ctx, t, namespace, "mig-"+profile+".nvidia.com", replicas)
}

// deploy creates a Deployment of pods with one device of a class each.
func deploy(ctx context.Context, t *testing.T, namespace, class string, replicas int32) {
	t.Helper()
	_, err := cluster.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "partitions"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}},
		}}},
	}, metav1.CreateOptions{})
	must(t, err)
	template, grace, labels := "partitions", int64(1), map[string]string{"app": "partitions"}
	_, err = cluster.Client.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "partitions"},
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
