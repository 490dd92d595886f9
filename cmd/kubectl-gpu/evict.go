// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/show/pack"
	"gpu-dra-driver/pkg/show/view"
)

// evicting makes the moves of a plan.
type evicting struct {
	*packCommand
	args []string
	look *look
	plan pack.Plan
	// cordoned are the GPUs that this command cordoned.
	cordoned []view.GPU
}

// movePoll is the pause between two looks at an evicted pod and its successor.
var movePoll = time.Second

// restoreLimit is the time to remove the cordons, which an interruption does not end.
const restoreLimit = 30 * time.Second

// run cordons the GPUs, makes the moves, and removes the cordons in any case but an empty node.
func (e *evicting) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, e.restore(ctx)) }()
	if err := e.hold(ctx); err != nil {
		return err
	}
	// Until the cordons held, a newcomer could take a device.
	if scheduled, err := e.verify(ctx, 0, pack.Move{}, nil); scheduled || err != nil {
		return err
	}
	for done := 0; done < len(e.plan.Moves); done++ {
		m := e.plan.Moves[done]
		successors, err := e.move(ctx, m)
		if err != nil {
			return fmt.Errorf("stopped in move %d of %d: %w", done+1, len(e.plan.Moves), err)
		}
		switch scheduled, err := e.verify(ctx, done+1, m, successors); {
		case err != nil:
			return fmt.Errorf("stopped after move %d of %d: %w", done+1, len(e.plan.Moves), err)
		case scheduled:
			return nil
		}
	}
	if e.empty {
		var names []string
		for _, g := range e.cordoned {
			names = append(names, g.Node+"/"+g.Name)
		}
		e.cordoned = nil
		fmt.Fprintf(e.Out, "node %s is empty after %s; its GPUs stay cordoned until: kubectl gpu uncordon %s\n",
			e.node, e.plan.Count(), strings.Join(names, " "))
		return nil
	}
	if err := e.restore(ctx); err != nil {
		return err
	}
	if e.look.goal.Pod != nil {
		return e.scheduled(ctx, e.look.goal.Pod)
	}
	fmt.Fprintf(e.Out, "done: %s\n", e.plan.Count())
	return nil
}

// hold cordons the GPUs of the plan, and waits until no claim can get them. Cordons of others stay as they are.
func (e *evicting) hold(ctx context.Context) error {
	t := e.tainting(resourceapi.DeviceTaintEffectNoSchedule)
	for _, n := range view.Nodes(e.look.own(e.look.Claims)) {
		for _, g := range n.GPUs {
			if !slices.Contains(e.plan.Hold, pack.GPU{Node: n.Name, Name: g.Name}) {
				continue
			}
			was, err := t.annotate(ctx, g)
			if err != nil {
				return err
			}
			if was == "" {
				e.cordoned = append(e.cordoned, g)
			}
		}
	}
	for _, g := range e.cordoned {
		if _, err := t.wait(ctx, g); err != nil {
			return err
		}
	}
	fmt.Fprintf(e.Out, "cordoned %d GPUs until the moves are done\n", len(e.cordoned))
	return nil
}

func (e *evicting) tainting(effect resourceapi.DeviceTaintEffect) *tainting {
	return &tainting{factory: e.factory, effect: effect, keep: true, objects: &objects{
		Diagnosis: view.Diagnosis{Objects: e.look.own(e.look.Claims)}, client: e.look.client, dynamic: e.look.dynamic,
	}}
}

// restore removes the cordons that this command set, once. Neither an interruption nor one failure ends it.
func (e *evicting) restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimit)
	defer cancel()
	t := e.tainting("")
	var errs []error
	for _, g := range e.cordoned {
		if _, err := t.annotate(ctx, g); err != nil {
			errs = append(errs, fmt.Errorf("GPU %s/%s stays cordoned, kubectl gpu uncordon ends it: %w", g.Node, g.Name, err))
		}
	}
	e.cordoned = nil
	return errors.Join(errs...)
}

// move evicts the pods of a move, and returns the pods that replace them once these are ready.
func (e *evicting) move(ctx context.Context, m pack.Move) (successors []*corev1.Pod, err error) {
	fmt.Fprintln(e.Out, m)
	var evicted []*corev1.Pod
	for _, name := range m.Pods {
		pod := e.look.pod(name)
		if pod == nil {
			return nil, fmt.Errorf("pod %s is gone", name)
		}
		evicted = append(evicted, pod)
	}
	namespace := evicted[0].Namespace // Pods of several namespaces share no claim.
	pods := e.look.client.CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	known := sets.New[types.UID]()
	for _, one := range list.Items {
		known.Insert(one.UID)
	}
	for _, pod := range evicted {
		err := e.look.client.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
		})
		if err != nil {
			return nil, fmt.Errorf("evict pod %s/%s: %w", namespace, pod.Name, err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	state := ""
	err = wait.PollUntilContextCancel(limited, movePoll, true, func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		state, successors = follow(evicted, known, list.Items)
		return state == "", nil
	})
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return nil, fmt.Errorf("%s after %s (--move-timeout)", state, e.patience)
	}
	return successors, err
}

// follow says which evicted pod is still there, or has no successor that is ready. It returns the successors if there is
// none such.
func follow(evicted []*corev1.Pod, known sets.Set[types.UID], now []corev1.Pod) (state string, successors []*corev1.Pod) {
	used := known.Clone()
	for _, old := range evicted {
		if slices.ContainsFunc(now, func(p corev1.Pod) bool { return p.UID == old.UID && !ended(p) }) {
			return fmt.Sprintf("pod %s/%s has not ended", old.Namespace, old.Name), nil
		}
		owner := metav1.GetControllerOf(old)
		if owner == nil {
			continue // Nothing replaces it.
		}
		at := slices.IndexFunc(now, func(p corev1.Pod) bool {
			mine := metav1.GetControllerOf(&p)
			return mine != nil && mine.UID == owner.UID && !used.Has(p.UID) && !ended(p)
		})
		if at < 0 {
			return fmt.Sprintf("%s %s/%s has not replaced pod %s", owner.Kind, old.Namespace, owner.Name, old.Name), nil
		}
		next := &now[at]
		used.Insert(next.UID)
		if !ready(*next) {
			return fmt.Sprintf("pod %s/%s, which replaces %s, is not ready%s", next.Namespace, next.Name, old.Name, unschedulable(*next)), nil
		}
		successors = append(successors, next)
	}
	return "", successors
}

func ended(p corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unschedulable is the scheduler's message, with a separator, or empty.
func unschedulable(p corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return ": " + c.Message
		}
	}
	return ""
}

// errScheduled means that the pod of the goal has a node before all moves are made.
var errScheduled = errors.New("is scheduled already")

// verify reads the cluster again after some moves, of which m is the last. It returns an error if a successor has one of the
// plan's GPUs, or if the rest of the plan does not hold any more. A successor may be elsewhere than planned while
// the rest holds. If the pod of the goal is scheduled before all moves are made, the others are not needed.
func (e *evicting) verify(ctx context.Context, done int, m pack.Move, successors []*corev1.Pod) (scheduled bool, err error) {
	rest, err := e.rest(ctx, done)
	if errors.Is(err, errScheduled) {
		fmt.Fprintf(e.Out, "%v: no other moves are needed\n", err)
		return true, nil
	}
	if err != nil && !errors.Is(err, errUnproven) {
		return false, err
	}
	elsewhere := ""
	gpus := e.look.gpus()
	for _, pod := range successors {
		devices, on := e.look.holds(pod, gpus)
		for _, g := range on {
			if slices.Contains(e.plan.Hold, g) {
				return false, fmt.Errorf("pod %s/%s came back on GPU %s, which the moves were to free", pod.Namespace, pod.Name, g)
			}
		}
		fmt.Fprintf(e.Out, "  pod %s/%s is ready on node %s with %s\n", pod.Namespace, pod.Name, pod.Spec.NodeName, strings.Join(devices, ", "))
		if pod.Spec.NodeName != m.To.Node || len(m.Pods) == 1 && !sets.New(devices...).Equal(sets.New(m.To.Devices...)) {
			elsewhere = fmt.Sprintf("pod %s/%s came back elsewhere than planned (%s)", pod.Namespace, pod.Name, m.To)
		}
	}
	switch {
	case err != nil:
		return false, err
	case e.defragment && elsewhere != "":
		return false, fmt.Errorf("%s; plan again", elsewhere)
	case e.defragment:
		return false, nil
	case elsewhere != "":
		fmt.Fprintf(e.Out, "  %s; the rest of the plan holds\n", elsewhere)
	}
	e.plan.Moves = append(slices.Clone(e.plan.Moves[:done]), rest...)
	return false, nil
}

// errUnproven means that the rest of the plan does not hold any more.
var errUnproven = errors.New("the rest of the plan does not hold any more")

// rest reads the cluster and proves the moves that are left. While a plugin publishes its devices anew, the scheduler has
// none of that node, so the proof fails. A failure counts if all slices were there and the one after it fails too.
func (e *evicting) rest(ctx context.Context, done int) (moves []pack.Move, err error) {
	began, failed := time.Now(), false
	err = wait.PollUntilContextCancel(ctx, followPoll, true, func(ctx context.Context) (bool, error) {
		next, err := e.packCommand.look(ctx, e.args, false)
		if err != nil {
			return false, err
		}
		next.cluster.Use = e.look.cluster.Use
		e.look = next
		var blockers []string
		if moves, blockers = e.prove(ctx, done); len(blockers) == 0 {
			return true, nil
		}
		switch parts := next.incomplete(e.plan.Nodes()...); {
		case len(parts) > 0 && time.Since(began) < followLimit:
			return false, nil
		case len(parts) > 0:
			return false, fmt.Errorf("%w: %s", errUnproven, incompleteText(parts))
		case failed:
			return false, fmt.Errorf("%w: %s", errUnproven, strings.Join(blockers, "; "))
		}
		failed = true
		return false, nil
	})
	return moves, err
}

// prove returns the moves that are left after some, or the blockers if they are not proven.
func (e *evicting) prove(ctx context.Context, done int) (moves []pack.Move, blockers []string) {
	rest := pack.Plan{Moves: e.plan.Moves[done:]}
	o := e.options()
	o.Held = e.plan.Hold
	var again pack.Plan
	switch {
	case e.defragment:
		return rest.Moves, nil
	case e.empty:
		again = pack.Empty(ctx, e.look.cluster, e.node, o)
		blockers = sets.List(sets.New(rest.Pods()...).Difference(sets.New(again.Pods()...)))
	default:
		again = pack.Prove(ctx, e.look.cluster, e.look.goal, e.plan.Place.Node, rest.Pods(), o)
	}
	if again.Result == pack.Blocked {
		blockers = append(blockers, again.Blockers...)
	}
	return again.Moves, blockers
}

// gpus returns the GPUs of each claim.
func (l *look) gpus() map[view.ClaimRef][]pack.GPU {
	out := map[view.ClaimRef][]pack.GPU{}
	for _, n := range view.Nodes(l.own(l.Claims)) {
		for _, g := range n.GPUs {
			for _, a := range g.Allocations {
				if !a.Admin {
					out[a.Claim] = append(out[a.Claim], pack.GPU{Node: n.Name, Name: g.Name})
				}
			}
		}
	}
	return out
}

// holds returns the devices of a pod's claims, and their GPUs.
func (l *look) holds(pod *corev1.Pod, of map[view.ClaimRef][]pack.GPU) (devices []string, on []pack.GPU) {
	for _, c := range l.Claims {
		if c.Namespace != pod.Namespace || c.Status.Allocation == nil ||
			!slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
			continue
		}
		on = append(on, of[view.ClaimRef{Namespace: c.Namespace, Name: c.Name}]...)
		for _, r := range c.Status.Allocation.Devices.Results {
			if !ptr.Deref(r.AdminAccess, false) {
				devices = append(devices, r.Device)
			}
		}
	}
	return devices, on
}

// scheduled waits until the pod of the goal has a node.
func (e *evicting) scheduled(ctx context.Context, pod *corev1.Pod) error {
	limited, cancel := context.WithTimeout(ctx, e.patience)
	defer cancel()
	why := ""
	err := wait.PollUntilContextCancel(limited, movePoll, true, func(ctx context.Context) (bool, error) {
		now, err := e.look.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, fmt.Errorf("pod %s/%s is gone", pod.Namespace, pod.Name)
		case err != nil:
			return false, err
		}
		why = unschedulable(*now)
		if now.Spec.NodeName != "" {
			fmt.Fprintf(e.Out, "done: %s; pod %s/%s is scheduled to node %s\n", e.plan.Count(), pod.Namespace, pod.Name, now.Spec.NodeName)
			return true, nil
		}
		return false, nil
	})
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("the moves are done, and pod %s/%s still waits after %s%s; kubectl gpu why %s -n %s explains it",
			pod.Namespace, pod.Name, e.patience, why, pod.Name, pod.Namespace)
	}
	return err
}
