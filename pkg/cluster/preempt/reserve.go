// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/cluster/act"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/wire"
)

const (
	// reserveFor is the time for which GPUs are reserved at once. It is set again after renew, as long as victims
	// leave.
	reserveFor, renew = 2 * time.Minute, 30 * time.Second
	// taintWithin is the time within which a node's plugin taints reserved GPUs.
	taintWithin = 20 * time.Second
	// without is the time without reservations after one that no plugin followed: an API server can lack device taints.
	without = time.Hour
	// rounds is the number of times that the scheduler is woken before a reservation ends. Its back-off doubles with
	// each try of a pod, from 1 s to 10 s. A pod that was tried less often, such as the successor of a victim, would be
	// tried before the pod of higher priority. After five tries all are equal, and the scheduler goes by priority.
	rounds = 5
	// round is the least time for the scheduler to try all waiting pods, aTry that for each of them, and longest the
	// most.
	round, aTry, longest = time.Second, 10 * time.Millisecond, 10 * time.Second
)

// reservation has the GPUs of a node that no newcomer gets while victims leave them.
type reservation struct {
	gpus []pack.GPU
	// set is when it was last written.
	set time.Time
	// rounds counts how often the scheduler was woken while all GPUs were free.
	rounds int
}

// reserve reserves the GPUs of an answer. The victims are evicted once all their devices have the taint.
func (k *Keeper) reserve(ctx context.Context, pod *corev1.Pod, p pack.Preemption, now time.Time) error {
	e := &eviction{pod: pod.UID, owner: ownerOf(pod), at: now, reservation: &reservation{gpus: p.GPUs}}
	if err := k.annotate(ctx, p.Node, e.reservation, now); err != nil {
		return err
	}
	k.evictions[p.Node] = e
	klog.FromContext(ctx).Info("Reserved GPUs for a pod that waits for devices, until pods of lower priority have "+
		"left them",
		"pod", klog.KObj(pod), "node", p.Node, "gpus", len(p.GPUs), "victims", len(p.Victims))
	return nil
}

// annotate writes a reservation for a time into a Node. A zero time removes it.
func (k *Keeper) annotate(ctx context.Context, node string, r *reservation, now time.Time) error {
	var names []string
	for _, g := range r.gpus {
		names = append(names, g.Name)
	}
	var value any
	if !now.IsZero() {
		value = now.Add(reserveFor).UTC().Format(time.RFC3339)
	}
	if err := k.write(ctx, node, names, value); err != nil {
		return err
	}
	r.set = now
	return nil
}

// write writes the annotations of GPUs; nil removes them. A Node that is gone has none.
func (k *Keeper) write(ctx context.Context, node string, gpus []string, value any) error {
	annotations := map[string]any{}
	for _, g := range gpus {
		annotations[wire.ReservationAnnotation(k.o.Driver, g)] = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err == nil {
		_, err = k.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: component})
	}
	if err != nil && (value != nil || !apierrors.IsNotFound(err)) {
		return fmt.Errorf("write the reservations of GPUs into Node %s: %w", node, err)
	}
	return nil
}

// renewal sets a reservation again, while victims leave.
type renewal struct {
	*Keeper
	node string
	*reservation
}

// Do implements act.Effect.
func (r renewal) Do(ctx context.Context, now time.Time) error {
	return r.annotate(ctx, r.node, r.reservation, now)
}

// release removes the reservation of an eviction.
type release struct {
	*Keeper
	node string
	*eviction
	// forgets means that the eviction is over too.
	forgets bool
}

// Do implements act.Effect.
func (r release) Do(ctx context.Context, now time.Time) error {
	if err := r.annotate(ctx, r.node, r.reservation, time.Time{}); err != nil {
		return err
	}
	r.reservation = nil
	if r.forgets {
		delete(r.evictions, r.node)
	} else {
		r.gone, r.woke = now, now
	}
	return nil
}

// forget forgets an eviction, once its reservation is removed.
func (k *Keeper) forget(node string, e *eviction) []act.Write {
	if e.reservation == nil {
		delete(k.evictions, node)
		return nil
	}
	return on(node, release{k, node, e, true})
}

// on returns a write of a Node.
func on(node string, effect act.Effect) []act.Write {
	return []act.Write{{About: corev1.ObjectReference{Kind: "Node", Name: node}, Effect: effect}}
}

// finish ends the reservation of an eviction whose victims are gone, once the scheduler has tried all waiting pods
// often enough. The change of the slices then wakes the scheduler once more. While it still tries pods, nothing is
// done: a pod of low priority at the end of a round would be the first to find the GPUs free. For the same reason it is
// one reservation at a time, first that of the pod which the scheduler tries first, because this pod would take any.
func (k *Keeper) finish(waiting []waiter, now time.Time) []act.Write {
	if now.Sub(k.woke) < min(round+aTry*time.Duration(len(waiting)), longest) {
		return nil
	}
	var wake []act.Write
	blocked := false
	for _, w := range waiting {
		node := k.servedOn(w)
		if node == "" {
			continue
		}
		e := k.evictions[node]
		switch r := e.reservation; {
		case r == nil:
		case e.gone.IsZero():
			blocked = true
		case r.rounds < rounds:
			r.rounds++
			wake, blocked = k.wake(w.pod, now), true
		case !blocked:
			return on(node, release{k, node, e, false})
		}
	}
	return wake
}

func (k *Keeper) wake(pod *corev1.Pod, now time.Time) []act.Write {
	k.woke = now
	return act.Wake(k.cluster, pod)
}

// sweep removes reservations that are not of this process: a former leader's.
func (k *Keeper) sweep(objects controller.Objects, now time.Time) (writes []act.Write) {
	if now.Sub(k.swept) < renew {
		return nil
	}
	k.swept = now
	for _, n := range objects.Nodes {
		if names := wire.ReservationsOf(k.o.Driver, n.Annotations); len(names) > 0 && k.evictions[n.Name] == nil {
			old := &reservation{}
			for _, g := range names {
				old.gpus = append(old.gpus, pack.GPU{Node: n.Name, Name: g})
			}
			writes = append(writes, k.forget(n.Name, &eviction{reservation: old})...)
		}
	}
	return writes
}

// tainted reports whether all published devices of reserved GPUs have the taint.
func tainted(all []*pool.Slice, node string, r *reservation) bool {
	var own []*pool.Slice
	for _, s := range all {
		if s.Node == node {
			own = append(own, s)
		}
	}
	names := sets.New[string]()
	for _, g := range r.gpus {
		names.Insert(g.Name)
	}
	found := pool.Of(own)
	for _, s := range found.Slices {
		for i, d := range s.Shape.Spec.Devices {
			if s.Possible || !slices.ContainsFunc(pool.GPUsOf(d), names.Has) {
				continue
			}
			if !slices.ContainsFunc(s.Unhealthy, func(t pool.Tainted) bool {
				return t.Device == i && t.Taint.Key == wire.ReservedTaint
			}) {
				return false
			}
		}
	}
	return found.Whole
}
