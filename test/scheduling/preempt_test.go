//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pack"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/why"
)

// TestPreemption_RandomPriorities_EachEvictionPlacesItsPod has the real scheduler. Each pod that is evicted is created again
// before its devices are free, as a ReplicaSet does. The scheduler gives them to the pod for which it was evicted, and evictions
// end.
func TestPreemption_RandomPriorities_EachEvictionPlacesItsPod(t *testing.T) {
	ctx := t.Context()
	p := newPlane(ctx, t)
	p.nodes = 2
	must(t, p.createNodes(ctx))
	_, err := p.publish(ctx, settingNamed("plain"))
	must(t, err)
	scheduler, err := p.startScheduler()
	must(t, err)
	t.Cleanup(scheduler.stop)
	const priorities = 6
	for i := range int32(priorities) {
		_, err := p.client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}, Value: i,
		}, metav1.CreateOptions{})
		must(t, err)
	}
	w, r, made := workloadNamed("whole"), rand.New(rand.NewPCG(seedtest.Base(t)+1, 35)), 0
	now := int64(0)
	create := func(class string, gpus int64) {
		w.request = request(w.request.DeviceClassName, gpus)
		name := fmt.Sprintf("pod-%03d", made)
		made++
		pod, claim := w.pod(name), w.claim(name)
		pod.Namespace, claim.Namespace = namespace, namespace
		pod.Spec.PriorityClassName, pod.Spec.TerminationGracePeriodSeconds = class, &now
		pod.Labels = map[string]string{"gpus": fmt.Sprint(gpus)}
		must(t, p.ask(ctx, pod, []*resourceapi.ResourceClaim{claim}))
	}
	pods := func() map[types.UID]corev1.Pod {
		list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		must(t, err)
		out := map[types.UID]corev1.Pod{}
		for _, one := range list.Items {
			out[one.UID] = one
		}
		return out
	}
	bound := func() (n int) {
		for _, one := range pods() {
			if one.Spec.NodeName != "" {
				n++
			}
		}
		return n
	}
	for range 2 * gpusOfNode {
		create(fmt.Sprintf("p%d", r.IntN(3)), 1)
	}
	must(t, p.until(ctx, "all GPUs are in use", func() error {
		if n := bound(); n != 2*gpusOfNode {
			return fmt.Errorf("%d pods run", n)
		}
		return nil
	}))
	for range 6 {
		create(fmt.Sprintf("p%d", r.IntN(priorities)), 1)
	}
	evicted := 0
	for {
		current := pods()
		var waiting []corev1.Pod
		must(t, p.until(ctx, "the scheduler has tried all pods", func() error {
			waiting, current = nil, pods()
			for _, one := range current {
				node, refused, message := state(&one)
				switch {
				case refused:
					waiting = append(waiting, one)
				case node == "":
					return fmt.Errorf("pod %s is pending: %s", one.Name, message)
				}
			}
			return nil
		}))
		slices.SortFunc(waiting, func(a, b corev1.Pod) int {
			return cmp.Or(cmp.Compare(pack.Priority(&b), pack.Priority(&a)), cmp.Compare(a.Name, b.Name))
		})
		c := &pack.Cluster{Cluster: *p.cluster(ctx)}
		c.States = read.States{read.Pods: nil}
		for _, one := range current {
			c.Pods = append(c.Pods, &one)
		}
		rules := pack.Rules{Together: true}
		var pod *corev1.Pod
		var answer pack.Preemption
		for _, one := range waiting {
			rules.Now = time.Now()
			needs := c.Needs(why.Subject{Pod: &one}, rules.Now)
			goal := pack.Goal{Claims: needs.Waiting(), Pod: &one, Needs: needs}
			if answer = pack.Preempt(ctx, c, goal, rules, pack.Options{Driver: slicetest.Driver}); answer.Verdict == pack.Evict {
				pod = &one
				break
			}
			rules.Before = append(rules.Before, goal)
		}
		if pod == nil {
			break
		}
		if evicted += len(answer.Victims); evicted > 60 {
			t.Fatal("evictions go round in circles")
		}
		for _, v := range answer.Victims {
			if pack.Priority(v) >= pack.Priority(pod) {
				t.Errorf("%s of priority %d was evicted for %s of %d", v.Name, pack.Priority(v), pod.Name, pack.Priority(pod))
			}
			must(t, p.client.CoreV1().Pods(namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v.Name}}))
			var gpus int64
			_, err := fmt.Sscan(v.Labels["gpus"], &gpus)
			must(t, err)
			create(v.Spec.PriorityClassName, gpus)
		}
		// kube-controller-manager releases claims whose pod is gone.
		for _, v := range answer.Victims {
			claims := p.client.ResourceV1().ResourceClaims(namespace)
			c, err := claims.Get(ctx, *v.Spec.ResourceClaims[0].ResourceClaimName, metav1.GetOptions{})
			must(t, err)
			c.Status = resourceapi.ResourceClaimStatus{}
			_, err = claims.UpdateStatus(ctx, c, metav1.UpdateOptions{})
			must(t, err)
		}
		must(t, p.until(ctx, "the scheduler places "+pod.Name, func() error {
			now, err := p.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err == nil && now.Spec.NodeName != answer.Node {
				err = fmt.Errorf("it is on node %q, expected %q", now.Spec.NodeName, answer.Node)
			}
			return err
		}))
	}
	if evicted < 3 {
		t.Errorf("%d pods were evicted", evicted)
	}
	t.Logf("%d pods were evicted", evicted)
}
