//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/preempt"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/wire"
)

// Objects reads what the leading controller knows.
func (p *plane) Objects() (controller.Objects, bool) {
	c := p.cluster(p.t.Context())
	pods, err := p.client.CoreV1().Pods("").List(p.t.Context(), metav1.ListOptions{})
	must(p.t, err)
	out := controller.Objects{Slices: c.Slices, Claims: c.Claims, Classes: c.Classes, Nodes: c.Nodes}
	for i := range pods.Items {
		out.Pods = append(out.Pods, &pods.Items[i])
	}
	return out, true
}

// Wake writes a class again.
func (p *plane) Wake(ctx context.Context) error {
	class, err := p.client.ResourceV1().DeviceClasses().Get(ctx, "nvlink.gpu.nvidia.com", metav1.GetOptions{})
	if err != nil {
		return err
	}
	class.Annotations = map[string]string{"gpu-dra-driver/refreshed": time.Now().String()}
	_, err = p.client.ResourceV1().DeviceClasses().Update(ctx, class, metav1.UpdateOptions{})
	return err
}

// follow taints the reserved GPUs of a node, as its plugin does.
func (p *plane) follow(ctx context.Context) error {
	nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	reserved := map[string][]string{}
	for _, n := range nodes.Items {
		reserved[n.Name] = wire.ReservationsOf(slicetest.Driver, n.Annotations)
	}
	published, err := p.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range published.Items {
		changed := false
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			want := slices.ContainsFunc(pool.GPUsOf(*d), func(g string) bool { return slices.Contains(reserved[*s.Spec.NodeName], g) })
			is := func(t resourceapi.DeviceTaint) bool { return t.Key == wire.ReservedTaint }
			if want == slices.ContainsFunc(d.Taints, is) {
				continue
			}
			changed = true
			d.Taints = slices.DeleteFunc(d.Taints, is)
			if want {
				d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: wire.ReservedTaint, Effect: resourceapi.DeviceTaintEffectNoSchedule})
			}
		}
		if changed {
			if _, err := p.client.ResourceV1().ResourceSlices().Update(ctx, &s, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestKeeper_VictimsOfSeveralClaims_EachEvictionPlacesItsPod has two nodes whose GPUs pods of low priority have one each, and
// three pods for four GPUs each. Evicted pods are created again at once, and their devices come free one after the other. The
// scheduler has its usual back-off.
func TestKeeper_VictimsOfSeveralClaims_EachEvictionPlacesItsPod(t *testing.T) {
	ctx := t.Context()
	p := newPlane(ctx, t)
	p.nodes, p.profile = 2, ""
	must(t, p.createNodes(ctx))
	_, err := p.publish(ctx, settingNamed("gpus"))
	must(t, err)
	scheduler, err := p.startScheduler()
	must(t, err)
	t.Cleanup(scheduler.stop)
	for i := range int32(4) {
		_, err := p.client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}, Value: i,
		}, metav1.CreateOptions{})
		must(t, err)
	}
	w, now := workloadNamed("whole"), int64(0)
	create := func(name, class string, gpus int64) {
		w.request = request(w.request.DeviceClassName, gpus)
		pod, claim := w.pod(name), w.claim(name)
		pod.Namespace, claim.Namespace = namespace, namespace
		pod.Spec.PriorityClassName, pod.Spec.TerminationGracePeriodSeconds = class, &now
		must(t, p.ask(ctx, pod, []*resourceapi.ResourceClaim{claim}))
	}
	live := map[string]bool{}
	for i := range 2 * gpusOfNode {
		name := fmt.Sprintf("low-%02d", i)
		create(name, "p0", 1)
		live[name] = true
	}
	must(t, p.until(ctx, "all GPUs are in use", func() error {
		list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, one := range list.Items {
			if one.Spec.NodeName == "" {
				return fmt.Errorf("pod %s waits", one.Name)
			}
		}
		return nil
	}))
	kinds := map[schema.GroupVersionResource]string{}
	for _, v := range read.RuleVersions {
		kinds[read.RuleResource(v)] = "DeviceTaintRuleList"
	}
	rules := read.NewRules(dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds))
	keeper := preempt.New(p.client, rules, p, record.NewFakeRecorder(1000),
		preempt.Options{Driver: slicetest.Driver})
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- keeper.Run(running) }()
	defer func() {
		cancel()
		<-ended
	}()
	for i := range 3 {
		create(fmt.Sprintf("high-%d", i), fmt.Sprintf("p%d", i+1), 4)
	}
	evicted := 0
	// Three times the wait, the taints, the back-off, and one by one the release of four claims.
	deadline := time.Now().Add(4 * time.Minute)
	for placed := 0; placed < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("%d pods of higher priority run, and %d were evicted", placed, evicted)
		}
		must(t, p.follow(ctx))
		list, err := p.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		must(t, err)
		present := map[string]*corev1.Pod{}
		for i := range list.Items {
			present[list.Items[i].Name] = &list.Items[i]
		}
		for name := range live {
			if present[name] != nil {
				continue
			}
			delete(live, name)
			evicted++
			again := name + "-again"
			create(again, "p0", 1)
			live[again] = true
			// kube-controller-manager deletes the claim of a pod that is gone.
			claims := p.client.ResourceV1().ResourceClaims(namespace)
			c, err := claims.Get(ctx, name, metav1.GetOptions{})
			must(t, err)
			c.Status = resourceapi.ResourceClaimStatus{}
			_, err = claims.UpdateStatus(ctx, c, metav1.UpdateOptions{})
			must(t, err)
			break
		}
		placed = 0
		for i := range 3 {
			if one := present[fmt.Sprintf("high-%d", i)]; one != nil && one.Spec.NodeName != "" {
				placed++
			}
		}
	}
	if evicted != 12 {
		t.Errorf("%d pods were evicted for three that need four GPUs each", evicted)
	}
	must(t, p.until(ctx, "the reservations end", func() error {
		nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if gpus := wire.ReservationsOf(slicetest.Driver, n.Annotations); len(gpus) > 0 {
				return fmt.Errorf("node %s reserves %v", n.Name, gpus)
			}
		}
		return nil
	}))
}
