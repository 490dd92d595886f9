// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pack"
)

// denied is in each answer of a webhook or an admission policy that refuses a request. Some have the code of an
// overload.
const denied = " denied "

// component is the source of the Events, and the manager of fields.
const component = "dra-controller"

// attempt is the eviction of the victims of a pod, or the reservation of their GPUs before it.
type attempt struct {
	*Keeper
	pod    *corev1.Pod
	answer pack.Preemption
	// reserves means that the GPUs are reserved first.
	reserves bool
}

// Do implements act.Effect.
func (a attempt) Do(ctx context.Context, now time.Time) error {
	err := a.try(ctx, now)
	if err == nil {
		return nil
	}
	if e := a.evictions[a.answer.Node]; e != nil && e.victims == nil {
		err = errors.Join(err, release{a.Keeper, a.answer.Node, e, true}.Do(ctx, now))
	}
	if ctx.Err() == nil {
		a.events.Eventf(a.pod, corev1.EventTypeWarning, "PreemptionFailed",
			"Cannot evict the pods of lower priority on node %s: trying again", a.answer.Node)
	}
	return fmt.Errorf("evict pods of lower priority on node %s for pod %s: %w", a.answer.Node, ask.NameOf(a.pod), err)
}

// try writes nothing unless the API server would evict each victim.
func (a attempt) try(ctx context.Context, now time.Time) error {
	for _, v := range a.answer.Victims {
		if err := a.evictOne(ctx, v, now, metav1.DryRunAll); err != nil {
			if a.refusals[v.UID].spared {
				delete(a.due, a.pod.UID) // Others are searched at once.
			}
			return fmt.Errorf("ask whether pod %s could be evicted: %w", ask.NameOf(v), err)
		}
	}
	if a.reserves {
		return a.reserve(ctx, a.pod, a.answer, now)
	}
	return a.evict(ctx, a.pod, a.answer, now)
}

// evict evicts the victims of a pod.
func (k *Keeper) evict(ctx context.Context, pod *corev1.Pod, p pack.Preemption, now time.Time) error {
	if err := k.nominate(ctx, pod, p.Node); err != nil {
		return err // The pod has changed: it may have a node now, or be deleted.
	}
	e := k.evictions[p.Node]
	if e == nil {
		e = &eviction{pod: pod.UID, owner: ownerOf(pod)}
		k.evictions[p.Node] = e
	}
	e.victims, e.at = map[types.UID]bool{}, now
	k.due[pod.UID] = now.Add(again)
	for _, v := range p.Victims {
		if err := k.evictOne(ctx, v, now); err != nil {
			return fmt.Errorf("evict pod %s: %w", ask.NameOf(v), err)
		}
		e.victims[v.UID] = true
		// The words are the scheduler's. Its reader may not know other namespaces, so the pod is named by its UID.
		k.events.Eventf(v, corev1.EventTypeNormal, "Preempted", "Preempted by pod %s on node %s", pod.UID, p.Node)
		klog.FromContext(ctx).Info("Evicted a pod for one of higher priority that waits for devices", "victim",
			klog.KObj(v), "pod", klog.KObj(pod), "node", p.Node)
	}
	what := "1 pod of lower priority leaves"
	if n := len(p.Victims); n > 1 {
		what = fmt.Sprintf("%d pods of lower priority leave", n)
	}
	k.events.Eventf(pod, corev1.EventTypeNormal, "Preempting", "%s node %s, because this pod waits for devices only",
		what, p.Node)
	return nil
}

// evictOne evicts a pod, or only asks whether it could be. It remembers a pod that the API server does not evict.
func (k *Keeper) evictOne(ctx context.Context, pod *corev1.Pod, now time.Time, dryRun ...string) error {
	o := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID)), DryRun: dryRun}
	pods := k.client.CoreV1().Pods(pod.Namespace)
	err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &o})
	// An API server that is overloaded has the same code as a disruption budget. Several budgets are an internal error.
	if k.o.Violate && (apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) ||
		apierrors.IsInternalError(err)) {
		err = pods.Delete(ctx, pod.Name, o)
	}
	if apierrors.IsNotFound(err) && len(dryRun) == 0 {
		return nil
	}
	// Webhooks and admission policies deny with any code. An internal error counts when a second one repeats it.
	sure := apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) || apierrors.IsForbidden(err) ||
		apierrors.IsInvalid(err) || err != nil && strings.Contains(err.Error(), denied)
	if _, repeated := k.refusals[pod.UID]; sure || apierrors.IsInternalError(err) {
		k.refusals[pod.UID] = refusal{sure || repeated, now.Add(refusedFor)}
	}
	return err
}

// nominate writes the node into a pod that is as the search found it, as the scheduler does for the pods for which it
// evicts others.
func (k *Keeper) nominate(ctx context.Context, pod *corev1.Pod, node string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   map[string]any{"nominatedNodeName": node},
	})
	if err == nil {
		_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: component}, "status")
	}
	if err != nil {
		return fmt.Errorf("write nominatedNodeName of pod %s: %w", ask.NameOf(pod), err)
	}
	return nil
}
