//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kueue runs the shipped images and chart beside the manager of Kueue.
package kueue

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var (
	cluster *env.Env
	must    = e2etest.Must
)

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, s *env.Env) error {
		cluster = s
		if err := s.Install(ctx, "hgx-h100", 8); err != nil {
			return err
		}
		return installManager(ctx, s)
	})
}

// queue is a namespace whose LocalQueue is called `gpus`.
type queue struct {
	*env.Env
	t         *testing.T
	namespace string
}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"kueue.x-k8s.io/queue-name": "gpus"}}
}

func pod() corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{
			Name: "probe", Image: "gpu-dra-driver/probe:0.1.0", ImagePullPolicy: corev1.PullNever, Args: []string{"look", "--hold"},
		}},
	}
}

func (q queue) pod(ctx context.Context, name string, spec corev1.PodSpec) {
	q.t.Helper()
	_, err := q.Client.CoreV1().Pods(q.namespace).Create(ctx, &corev1.Pod{ObjectMeta: meta(name), Spec: spec}, metav1.CreateOptions{})
	must(q.t, err)
}

// extended submits a pod with an extended resource.
func (q queue) extended(ctx context.Context, name, resourceName, count string) {
	q.t.Helper()
	q.pod(ctx, name, requesting(resourceName, count))
}

func requesting(resourceName, count string) corev1.PodSpec {
	spec := pod()
	spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(resourceName): resource.MustParse(count)}
	return spec
}

func claiming(c corev1.PodResourceClaim) corev1.PodSpec {
	spec := pod()
	c.Name = "gpu"
	spec.ResourceClaims = []corev1.PodResourceClaim{c}
	spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	return spec
}

// job submits a Job with a claim template.
func (q queue) job(ctx context.Context, name, template, priority string) {
	q.t.Helper()
	spec := claiming(corev1.PodResourceClaim{ResourceClaimTemplateName: &template})
	spec.PriorityClassName = priority
	q.submit(ctx, name, spec)
}

func (q queue) submit(ctx context.Context, name string, spec corev1.PodSpec) {
	q.t.Helper()
	_, err := q.Client.BatchV1().Jobs(q.namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: meta(name), Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
	}, metav1.CreateOptions{})
	must(q.t, err)
}

func (q queue) remove(ctx context.Context, object string) {
	q.t.Helper()
	_, err := q.Kubectl(ctx, "-n", q.namespace, "delete", object)
	must(q.t, err)
}

// state is the charge of the Workload of a Job or pod, or the reason for which it waits.
func (q queue) state(ctx context.Context, name string) string {
	out, err := q.Kubectl(ctx, "-n", q.namespace, "get", "workloads", "-o", "json")
	must(q.t, err)
	var list struct {
		Items []struct {
			Metadata metav1.ObjectMeta
			Status   struct {
				Conditions []metav1.Condition
				Admission  struct {
					PodSetAssignments []struct{ ResourceUsage map[string]string }
				}
			}
		}
	}
	must(q.t, json.Unmarshal([]byte(out), &list))
	for _, w := range list.Items {
		if len(w.Metadata.OwnerReferences) == 0 || w.Metadata.OwnerReferences[0].Name != name {
			continue
		}
		if sets := w.Status.Admission.PodSetAssignments; len(sets) > 0 {
			return fmt.Sprint(sets[0].ResourceUsage)
		}
		for _, c := range w.Status.Conditions {
			if c.Type == "QuotaReserved" {
				return c.Reason + ": " + c.Message
			}
		}
	}
	return "no Workload"
}

func (q queue) expect(ctx context.Context, name, state string) {
	q.t.Helper()
	must(q.t, q.Eventually(ctx, name+" "+state, 60*time.Second, func(ctx context.Context) (bool, string) {
		got := q.state(ctx, name)
		return strings.Contains(got, state), got
	}))
}

// runs waits until the pod of a Job runs, or the pod itself, with the charge.
func (q queue) runs(ctx context.Context, name, charge string) {
	q.t.Helper()
	q.expect(ctx, name, "map["+charge+"]")
	must(q.t, q.Eventually(ctx, name+" running", 60*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := q.Client.CoreV1().Pods(q.namespace).List(ctx, metav1.ListOptions{})
		must(q.t, err)
		for _, p := range pods.Items {
			if p.Name == name || p.Labels[batchv1.JobNameLabel] == name {
				return p.Status.Phase == corev1.PodRunning, p.Name + " is " + string(p.Status.Phase)
			}
		}
		return false, "it has no pod"
	}))
}

// TestKueue_Quotas_ChargedPreemptedAndReleased queues Jobs and pods with each kind of quota of the demo.
func TestKueue_Quotas_ChargedPreemptedAndReleased(t *testing.T) {
	ctx := e2etest.Context(t, 12*time.Minute)
	for _, file := range []string{"demo/kueue/queue.yaml", "test/e2e/kueue/testdata/claims.yaml"} {
		_, err := cluster.Kubectl(ctx, "apply", "-f", cluster.Tree+"/"+file)
		must(t, err)
	}
	q := queue{cluster, t, "queue"}

	// One group of four is the quota.
	q.job(ctx, "group-1", "group-of-four", "")
	q.runs(ctx, "group-1", "groups-of-4:1")
	q.job(ctx, "group-2", "group-of-four", "")
	q.expect(ctx, "group-2", "insufficient unused quota for groups-of-4")
	q.remove(ctx, "job/group-1")
	q.runs(ctx, "group-2", "groups-of-4:1")
	q.remove(ctx, "job/group-2")

	// Two GPUs are the quota, for claims and extended resources together.
	q.job(ctx, "first", "two-gpus", "")
	q.runs(ctx, "first", "gpus:2")
	q.job(ctx, "second", "two-gpus", "")
	q.expect(ctx, "second", "Pending: couldn't assign flavors to pod set main: insufficient unused quota for gpus")
	q.remove(ctx, "job/first")
	q.runs(ctx, "second", "gpus:2")
	q.extended(ctx, "extended", "nvidia.com/gpu", "1")
	q.expect(ctx, "extended", "insufficient unused quota for gpus in flavor gpu-nodes, 1 more needed")
	q.remove(ctx, "job/second")
	q.runs(ctx, "extended", "gpus:1")
	view, err := q.Inspect(ctx, q.namespace, "extended", "probe")
	must(t, err)
	if len(view.UUIDs()) != 1 {
		t.Errorf("the pod with nvidia.com/gpu: 1 sees %v", view.UUIDs())
	}
	q.extended(ctx, "partitions", "nvidia.com/mig-1g.10gb", "7")
	q.runs(ctx, "partitions", "partitions-1g:7")
	q.extended(ctx, "partition-8", "nvidia.com/mig-1g.10gb", "1")
	q.expect(ctx, "partition-8", "insufficient unused quota for partitions-1g")
	q.extended(ctx, "unmapped", "nvidia.com/mig-2g.20gb", "1")
	q.expect(ctx, "unmapped", "resource nvidia.com/mig-2g.20gb unavailable in ClusterQueue")
	q.remove(ctx, "pod/partitions")
	q.runs(ctx, "partition-8", "partitions-1g:1")

	// One quota of memory is for GPUs, partitions and groups. A fraction is charged as its GPU.
	q.job(ctx, "group", "group-of-two", "")
	q.runs(ctx, "group", "h100-memory:163118Mi")
	q.job(ctx, "partition", "partition", "")
	q.expect(ctx, "partition", "insufficient unused quota for h100-memory in flavor gpu-nodes, 9134Mi more needed")
	q.remove(ctx, "job/group")
	q.runs(ctx, "partition", "h100-memory:9856Mi")
	q.job(ctx, "fraction", "fraction", "")
	q.runs(ctx, "fraction", "h100-memory:81559Mi")
	q.job(ctx, "whole", "whole", "")
	q.expect(ctx, "whole", "insufficient unused quota for h100-memory in flavor gpu-nodes, 9134Mi more needed")
	q.remove(ctx, "job/partition")
	q.runs(ctx, "whole", "h100-memory:81559Mi")

	// A whole GPU preempts a fraction with a lower priority.
	q.remove(ctx, "job/whole")
	q.job(ctx, "urgent-1", "whole", "urgent")
	q.runs(ctx, "urgent-1", "h100-memory:81559Mi")
	q.job(ctx, "urgent-2", "whole", "urgent")
	q.runs(ctx, "urgent-2", "h100-memory:81559Mi")
	q.expect(ctx, "fraction", "insufficient unused quota for h100-memory")
	q.remove(ctx, "job/urgent-1")
	q.runs(ctx, "fraction", "h100-memory:81559Mi")

	for template, reason := range map[string]string{
		"first-available": "FirstAvailable device selection is not supported",
		"all":             "AllocationMode 'All' is not supported",
	} {
		q.job(ctx, template, template, "")
		q.expect(ctx, template, "Inadmissible: ")
		q.expect(ctx, template, reason)
	}
	q.pod(ctx, "direct", claiming(corev1.PodResourceClaim{ResourceClaimName: new("direct")}))
	q.expect(ctx, "direct", "Inadmissible: KueueDRAIntegration feature does not support use of resource claims")

	remove(ctx, t, q.namespace)
}

// remove removes namespaces, and waits until there are no claims.
func remove(ctx context.Context, t *testing.T, namespaces ...string) {
	t.Helper()
	_, err := cluster.Kubectl(ctx, append([]string{"delete", "--wait=false", "namespace"}, namespaces...)...)
	must(t, err)
	must(t, cluster.Eventually(ctx, "no claim left", 90*time.Second, func(ctx context.Context) (bool, string) {
		left, err := cluster.Client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, fmt.Sprint(err)
	}))
}
