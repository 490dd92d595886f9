// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/cluster/why"
)

// workload reads the selector of a workload's pods. The kind is as people write it to kubectl. With an error, clients
// return an empty object.
func (g *getter) workload(ctx context.Context, namespace, kind, name string) (*metav1.LabelSelector, error) {
	apps, o := g.client.AppsV1(), metav1.GetOptions{}
	switch kind {
	case "job", "jobs":
		one, err := g.client.BatchV1().Jobs(namespace).Get(ctx, name, o)
		return one.Spec.Selector, err
	case "deployment", "deployments", "deploy":
		one, err := apps.Deployments(namespace).Get(ctx, name, o)
		return one.Spec.Selector, err
	case "replicaset", "replicasets", "rs":
		one, err := apps.ReplicaSets(namespace).Get(ctx, name, o)
		return one.Spec.Selector, err
	case "statefulset", "statefulsets", "sts":
		one, err := apps.StatefulSets(namespace).Get(ctx, name, o)
		return one.Spec.Selector, err
	case "daemonset", "daemonsets", "ds":
		one, err := apps.DaemonSets(namespace).Get(ctx, name, o)
		return one.Spec.Selector, err
	}
	return nil, usageError{fmt.Errorf("%q: name a pod, a claim, a Job, Deployment, ReplicaSet, StatefulSet or "+
		"DaemonSet", kind+"/"+name)}
}

// ofWorkload returns the pod of a workload that has waited longest, or one of its pods if none waits.
func (g *getter) ofWorkload(ctx context.Context, namespace, kind, name string) (*corev1.Pod, error) {
	selector, err := g.workload(ctx, namespace, kind, name)
	if errors.As(err, &usageError{}) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s/%s: %w", kind, namespace, name, err)
	}
	list, err := g.client.CoreV1().Pods(namespace).List(ctx,
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(selector)})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s %s/%s: %w", kind, namespace, name, err)
	}
	pods := pointers(list.Items)
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s %s/%s has no pod%s", kind, namespace, name, g.refusedPods(ctx, namespace, name))
	}
	waits := func(p *corev1.Pod) int {
		if p.Spec.NodeName == "" && !waiting.Ended(p) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		if by := waits(a) - waits(b); by != 0 {
			return by
		}
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return pods[0], nil
}

// refusedPods says why the API server refuses the pods of a workload, by the newest Event of its name, or nothing.
func (g *getter) refusedPods(ctx context.Context, namespace, name string) string {
	selector := fields.Set{"reason": "FailedCreate", "type": corev1.EventTypeWarning}.String()
	list, err := g.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: selector})
	if apierrors.IsForbidden(err) {
		return "; Events could not be read"
	}
	if err != nil {
		return fmt.Sprintf("; Events could not be read: %v", err)
	}
	var last *corev1.Event
	for _, e := range pointers(list.Items) {
		// A ReplicaSet has the name of its Deployment and a hash without hyphens.
		hash, replicas := strings.CutPrefix(e.InvolvedObject.Name, name+"-")
		ours := e.InvolvedObject.Name == name || replicas && e.InvolvedObject.Kind == "ReplicaSet" &&
			!strings.Contains(hash, "-")
		if ours && (last == nil || why.Seen(last).Before(why.Seen(e))) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	message := strings.TrimPrefix(last.Message, "Error creating: ")
	return fmt.Sprintf(". The API server refuses its pods: %s. To start them, %s", message, why.RefusalCure(message))
}
