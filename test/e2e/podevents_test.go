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

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/why"
	"gpu-dra-driver/test/e2e/env"
)

// waitingEvent waits until an object has exactly one Event about its waiting, with the texts.
func waitingEvent(ctx context.Context, t *testing.T, namespace, object string, texts ...string) (out corev1.Event) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "Event on "+object+" that it waits", 150*time.Second, func(ctx context.Context) (bool, string) {
		selector := "involvedObject.name=" + object + ",reason=" + why.EventReason
		list, err := cluster.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return false, err.Error()
		}
		if len(list.Items) != 1 {
			return false, fmt.Sprintf("there are %d", len(list.Items))
		}
		out = list.Items[0]
		for _, text := range texts {
			if !strings.Contains(out.Message, text) {
				return false, out.Message
			}
		}
		return true, ""
	}))
	return out
}

func gpuRequest(count int64) resourceapi.DeviceClaim {
	return resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: env.Driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
	}}}
}

// TestPodEvents_GPUsHeld_OneEventThatFollowsTheCause has claims of two namespaces that hold all GPUs, and ends one of them.
func TestPodEvents_GPUsHeld_OneEventThatFollowsTheCause(t *testing.T) {
	ctx := testContext(t)
	own, other := createNamespace(ctx, t, nil), createNamespace(ctx, t, nil)
	for namespace, name := range map[string]string{own: "first", other: "hidden"} {
		_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: gpuRequest(4)},
		}, metav1.CreateOptions{})
		must(t, err)
		createPod(ctx, t, namespace, name, name, nil)
		_, err = cluster.WaitPods(ctx, namespace, 1)
		must(t, err)
	}
	_, err := cluster.Client.ResourceV1().ResourceClaims(own).Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: resourceapi.ResourceClaimSpec{Devices: gpuRequest(8)},
	}, metav1.CreateOptions{})
	must(t, err)
	createPod(ctx, t, own, "waits", "all", nil)
	createPod(ctx, t, own, "extended", "", func(spec *corev1.PodSpec) {
		spec.ResourceClaims, spec.Containers[0].Resources.Claims = nil, nil
		spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	})

	one := waitingEvent(ctx, t, own, "waits", "claims "+own+"/first (pod first", "1 of other namespaces must end", "kubectl gpu why waits -n "+own)
	if strings.Contains(one.Message, "hidden") || strings.Contains(one.Message, other) || one.Count != 1 {
		t.Errorf("the Event is %d times %q", one.Count, one.Message)
	}
	described, err := cluster.Kubectl(ctx, "-n", own, "describe", "pod", "waits")
	must(t, err)
	if !strings.Contains(described, one.Message) {
		t.Errorf("kubectl describe does not show the Event:\n%s", described)
	}
	waitingEvent(ctx, t, own, "extended", own+"/first")

	must(t, cluster.Client.CoreV1().Pods(own).Delete(ctx, "first", metav1.DeleteOptions{}))
	changed := waitingEvent(ctx, t, own, "waits", "a claim of another namespace must end")
	if changed.UID != one.UID || changed.Count != 2 {
		t.Errorf("it is another Event: %+v", changed)
	}
}

// TestPodEvents_QuotaRefuses_SaysSo has quotas that refuse the claim of a pod, and the pods of a Job.
func TestPodEvents_QuotaRefuses_SaysSo(t *testing.T) {
	ctx := testContext(t)
	spec := func(namespace string) corev1.PodSpec {
		_, err := cluster.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: gpuRequest(1)}},
		}, metav1.CreateOptions{})
		must(t, err)
		return corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "probe", Image: probeImage(t), ImagePullPolicy: corev1.PullNever, Args: []string{"look", "--hold"},
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
			}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one")}},
		}
	}
	limited := func(resourceName corev1.ResourceName) string {
		namespace := createNamespace(ctx, t, nil)
		_, err := cluster.Client.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{resourceName: resource.MustParse("0")}},
		}, metav1.CreateOptions{})
		must(t, err)
		must(t, cluster.Eventually(ctx, "the quota counts", time.Minute, func(ctx context.Context) (bool, string) {
			q, err := cluster.Client.CoreV1().ResourceQuotas(namespace).Get(ctx, "none", metav1.GetOptions{})
			return err == nil && len(q.Status.Hard) > 0, fmt.Sprint(err)
		}))
		return namespace
	}
	ofClaims, ofPods := limited("count/resourceclaims.resource.k8s.io"), limited("pods")
	_, err := cluster.Client.CoreV1().Pods(ofClaims).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "waits"}, Spec: spec(ofClaims)}, metav1.CreateOptions{})
	must(t, err)
	_, err = cluster.Client.BatchV1().Jobs(ofPods).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "train"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec(ofPods)}},
	}, metav1.CreateOptions{})
	must(t, err)

	waitingEvent(ctx, t, ofClaims, "waits", "exceeded quota: none", "have the quota raised, or ask for less")
	text := kubectlGPU(ctx, t, "why", "waits", "-n", ofClaims)
	if !strings.Contains(text, "waits: a claim is missing") || !strings.Contains(text, "exceeded quota: none") {
		t.Errorf("kubectl gpu why says:\n%s", text)
	}
	waitingEvent(ctx, t, ofPods, "train", "The API server refuses pods of this Job", "exceeded quota: none")
	if _, err := cluster.KubectlGPU(ctx, "why", "job/train", "-n", ofPods); err == nil || !strings.Contains(err.Error(), "The API server refuses its pods: ") {
		t.Errorf("kubectl gpu why of a Job without pods: %v", err)
	}

	// The command that the answer gives lets Kubernetes try again.
	must(t, cluster.Client.CoreV1().ResourceQuotas(ofClaims).Delete(ctx, "none", metav1.DeleteOptions{}))
	_, command, found := strings.Cut(text, "at once after: kubectl ")
	command, _, _ = strings.Cut(command, "\n")
	if !found {
		t.Fatalf("no command to try again in:\n%s", text)
	}
	if out, err := cluster.Kubectl(ctx, strings.Fields(command)...); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	waitRunning(ctx, t, ofClaims, "waits")
}

// TestPodEvents_BoundWithoutClaim_EveryToolSaysSo has two pods that no scheduler places: the policy refuses the one with
// spec.nodeName, unless its namespace may have such pods. The test binds the other one itself.
func TestPodEvents_BoundWithoutClaim_EveryToolSaysSo(t *testing.T) {
	ctx := testContext(t)
	const partition = "nvidia.com/mig-1g.10gb" // No other test has a device plugin of it, of which the node would keep a count.
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	node := nodes.Items[0].Name
	pod := func(name, nodeName string) *corev1.Pod {
		grace := int64(1)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: nodeName, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "probe", Image: probeImage(t), ImagePullPolicy: corev1.PullNever, Args: []string{"look", "--hold"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{partition: resource.MustParse("1")}},
			}},
		}}
	}
	refusing := createNamespace(ctx, t, nil)
	_, err = cluster.Client.CoreV1().Pods(refusing).Create(ctx, pod("named", node), metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "write nodeSelector {kubernetes.io/hostname: "+node+"}") {
		t.Errorf("a pod with spec.nodeName: %v", err)
	}

	namespace := createNamespace(ctx, t, map[string]string{"gpu-dra-driver/node-name": "true"})
	_, err = cluster.Client.CoreV1().Pods(namespace).Create(ctx, pod("named", node), metav1.CreateOptions{})
	must(t, err)
	other := pod("bound", "")
	other.Spec.SchedulerName = "another-scheduler"
	_, err = cluster.Client.CoreV1().Pods(namespace).Create(ctx, other, metav1.CreateOptions{})
	must(t, err)
	must(t, cluster.Client.CoreV1().Pods(namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "bound"}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{}))
	pods, err := cluster.WaitPods(ctx, namespace, 2)
	must(t, err)
	for _, p := range pods {
		if p.Status.ExtendedResourceClaimStatus != nil {
			t.Errorf("pod %s has a claim for its GPU", p.Name)
		}
		said, err := cluster.KubectlGPU(ctx, "why", p.Name, "-n", namespace)
		must(t, err)
		if !strings.Contains(said, "is on node "+node+" without devices for "+partition+" of container probe") || !strings.Contains(said, "Remove spec.nodeName") {
			t.Errorf("why says of pod %s:\n%s", p.Name, said)
		}
	}
	found, _ := cluster.KubectlGPU(ctx, "doctor") // It exits with 2 after a problem.
	for _, name := range []string{"bound", "named"} {
		if !strings.Contains(found, "pod "+namespace+"/"+name) || !strings.Contains(found, "on its node without "+partition) {
			t.Errorf("doctor does not name pod %s:\n%s", name, found)
		}
		waitEvent(ctx, t, namespace, name, "without devices for "+partition+" of container probe", "Remove spec.nodeName")
	}
}
