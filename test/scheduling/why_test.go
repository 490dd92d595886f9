//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/internal/testing/whytest"
	"gpu-dra-driver/pkg/cluster/why"
)

// fleets is the number of random fleets; each one also has copies, for its nodes or for its cures.
const fleets = 48

// plane is the API server and scheduler of the test.
type plane struct {
	*controlPlane
	t *testing.T
}

func newPlane(ctx context.Context, t *testing.T) *plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "scheduling-") // t.TempDir would be removed before the processes have ended.
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	cancelled, cancel := context.WithCancelCause(ctx)
	// The default pause of up to ten seconds between two attempts would be most of the test's time.
	p := &plane{t: t, controlPlane: &controlPlane{
		options: options{percentage: 100, parallelism: 16}, dir: dir, cancel: cancel, profile: "podInitialBackoffSeconds: 1\npodMaxBackoffSeconds: 1\n",
	}}
	onenode, version := os.Getenv("ONENODE"), os.Getenv("KUBERNETES")
	if onenode == "" {
		onenode, err = filepath.Abs("../../bin/onenode")
		must(t, err)
	}
	if version == "" {
		version = "v1.37.1"
	}
	p.programs, err = programPaths(ctx, onenode, version)
	must(t, err)
	t.Cleanup(p.stop)
	must(t, p.start(cancelled))
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// trial is a random fleet in the cluster, with a pod for its nodes.
type trial struct {
	seed   uint64
	prefix string
	fleet  *whytest.Fleet
	pod    *corev1.Pod
	claims []*resourceapi.ResourceClaim
	// nodes are those on which the scheduler must place the pod; with none, it must refuse the pod.
	nodes []string
	// cure is applied after the scheduler has refused the pod.
	cure *why.Cure
}

func (c *trial) String() string {
	text := fmt.Sprintf("seed %d, pod %s", c.seed, c.pod.Name)
	if c.cure != nil {
		text += ", cure: " + c.cure.Text
	}
	return text
}

// newTrial makes the fleet of a seed. Two trials of a seed are equal but for the prefix of their names.
func newTrial(t *testing.T, seed uint64, prefix string) *trial {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	f, err := whytest.Random(r, prefix)
	must(t, err)
	c := &trial{seed: seed, prefix: prefix, fleet: f}
	c.pod, c.claims = whytest.RandomPod(r, prefix)
	room := corev1.ResourceList{"cpu": resource.MustParse("192"), "memory": resource.MustParse("2Ti"), "pods": resource.MustParse("250")}
	for _, n := range f.Nodes {
		n.Status = corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
		if r.IntN(12) == 0 {
			n.Spec.Unschedulable = true
		}
		if r.IntN(12) == 0 {
			n.Spec.Taints = []corev1.Taint{{Key: "example.com/reserved", Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	return c
}

// pin lets the pod run on one node only.
func pin(pod *corev1.Pod, node string) {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}}}
}

// renamed translates names of one fleet into those of a copy.
func renamed(names []string, from, to string) (out []string) {
	for _, n := range names {
		out = append(out, strings.Replace(n, from, to, 1))
	}
	return out
}

func (p *plane) create(ctx context.Context, c *trial) error {
	for _, n := range c.fleet.Nodes {
		if _, err := p.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, s := range c.fleet.Slices {
		if _, err := p.client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, r := range c.fleet.Rules {
		if _, err := p.client.ResourceV1().DeviceTaintRules().Create(ctx, r, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, held := range c.fleet.Claims {
		made, err := p.client.ResourceV1().ResourceClaims(held.Namespace).Create(ctx, held, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Status = held.Status
		if _, err := p.client.ResourceV1().ResourceClaims(held.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return p.ask(ctx, c.pod, c.claims)
}

// ask creates a pod and its claims.
func (p *plane) ask(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) error {
	for _, claim := range claims {
		if _, err := p.client.ResourceV1().ResourceClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	_, err := p.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// cluster reads all objects, as `kubectl gpu why` does.
func (p *plane) cluster(ctx context.Context) *why.Cluster {
	p.t.Helper()
	c := &why.Cluster{Nodes: []*corev1.Node{}}
	nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(p.t, err)
	for i := range nodes.Items {
		c.Nodes = append(c.Nodes, &nodes.Items[i])
	}
	published, err := p.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	must(p.t, err)
	var whole []*resourceapi.ResourceSlice
	for i := range published.Items {
		whole = append(whole, &published.Items[i])
	}
	c.Slices, err = whytest.Pack(whole)
	must(p.t, err)
	claims, err := p.client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	must(p.t, err)
	for i := range claims.Items {
		c.Claims = append(c.Claims, &claims.Items[i])
	}
	classes, err := p.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	must(p.t, err)
	for i := range classes.Items {
		c.Classes = append(c.Classes, &classes.Items[i])
	}
	rules, err := p.client.ResourceV1().DeviceTaintRules().List(ctx, metav1.ListOptions{})
	must(p.t, err)
	for i := range rules.Items {
		c.Rules = append(c.Rules, &rules.Items[i])
	}
	return c
}

// state says where the scheduler has placed a pod, or that it has refused it.
func state(pod *corev1.Pod) (node string, refused bool, message string) {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName, false, "placed on " + pod.Spec.NodeName
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "", true, condition.Reason + ": " + condition.Message
		}
	}
	return "", false, "not looked at"
}

// wait waits until the scheduler has done with each pod as wanted, and reports each pod of which the opposite is true.
func (p *plane) wait(ctx context.Context, trials []*trial) {
	p.t.Helper()
	open := slices.Clone(trials)
	err := p.until(ctx, fmt.Sprintf("the scheduler has looked at %d pods", len(trials)), func() error {
		list, err := p.client.CoreV1().Pods(whytest.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods := map[string]*corev1.Pod{}
		for i := range list.Items {
			pods[list.Items[i].Name] = &list.Items[i]
		}
		last := ""
		open = slices.DeleteFunc(open, func(c *trial) bool {
			pod := pods[c.pod.Name]
			if pod == nil {
				p.t.Errorf("%s: there is no such pod", c)
				return true
			}
			node, refused, message := state(pod)
			switch {
			case node != "":
				if !slices.Contains(c.nodes, node) {
					p.t.Errorf("%s: %s, want one of the nodes %v", c, message, c.nodes)
				}
				return true
			case refused && len(c.nodes) == 0:
				return true
			case refused && c.cure == nil:
				p.t.Errorf("%s: %s, want it on one of the nodes %v", c, message, c.nodes)
				return true
			}
			last = fmt.Sprintf("%s: %s, want it on one of the nodes %v", c, message, c.nodes)
			return false
		})
		if len(open) > 0 {
			return fmt.Errorf("%d pods are left: %s", len(open), last)
		}
		return nil
	})
	if err != nil {
		p.t.Error(err)
	}
}

// apply changes the cluster as a cure says. Of a taint it either removes the taint or lets the claims tolerate it.
func (p *plane) apply(ctx context.Context, c *trial) error {
	r := rand.New(rand.NewPCG(c.seed, 2))
	claims := p.client.ResourceV1().ResourceClaims(whytest.Namespace)
	for _, key := range c.cure.Release {
		_, name, _ := strings.Cut(key, "/")
		if r.IntN(2) == 0 { // The user deletes the claim.
			if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			continue
		}
		held, err := claims.Get(ctx, name, metav1.GetOptions{}) // Or its pod ends, and the claim stays without an allocation.
		if err != nil {
			return err
		}
		held.Status.Allocation, held.Status.ReservedFor = nil, nil
		if _, err := claims.UpdateStatus(ctx, held, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if c.cure.Claims == nil {
		return nil
	}
	if strings.Contains(c.cure.Text, "the taint example.com/repair=yes:NoSchedule must go") && r.IntN(2) == 0 {
		return p.repair(ctx, c.fleet)
	}
	now := int64(0)
	if err := p.client.CoreV1().Pods(whytest.Namespace).Delete(ctx, c.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		return err
	}
	for _, claim := range c.claims {
		if err := claims.Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	var changed []*resourceapi.ResourceClaim
	pod := whytest.Pod(c.prefix + "cured")
	pod.Spec.NodeSelector = c.pod.Spec.NodeSelector
	container := corev1.Container{Name: "c", Image: "none"}
	for i, claim := range c.cure.Claims {
		one := whytest.Claim(fmt.Sprintf("%scured-%d", c.prefix, i), "", 1)
		one.Spec = *claim.Spec.DeepCopy()
		for j := range one.Spec.Devices.Requests {
			if c.claims == nil { // Those of an extended resource have no valid names.
				one.Spec.Devices.Requests[j].Name = fmt.Sprintf("r%d", j)
			}
		}
		changed = append(changed, one)
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{Name: one.Name})
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: one.Name, ResourceClaimName: &one.Name})
	}
	pod.Spec.Containers = []corev1.Container{container}
	pin(pod, c.nodes[r.IntN(len(c.nodes))])
	c.pod, c.claims = pod, changed
	return p.ask(ctx, pod, changed)
}

// repair removes all taints of a fleet's devices.
func (p *plane) repair(ctx context.Context, f *whytest.Fleet) error {
	for _, r := range f.Rules {
		if err := p.client.ResourceV1().DeviceTaintRules().Delete(ctx, r.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	published := p.client.ResourceV1().ResourceSlices()
	for _, s := range f.Slices {
		if !slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 }) {
			continue
		}
		current, err := published.Get(ctx, s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range current.Spec.Devices {
			current.Spec.Devices[i].Taints = nil
		}
		if _, err := published.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// TestWhy_RandomFleets_AgreesWithScheduler compares `why` with kube-scheduler. All objects exist before the scheduler
// starts, so that a refusal is final. If a pod fits, each node of its fleet gets a copy of the fleet, with a pod for this
// node only. Each cure gets a copy too, and is applied after the refusal.
func TestWhy_RandomFleets_AgreesWithScheduler(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	p := newPlane(ctx, t)
	_, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: whytest.Namespace}}, metav1.CreateOptions{})
	must(t, err)
	for _, class := range whytest.New().Classes {
		if class.Name == whytest.GPUs {
			class.Spec.ExtendedResourceName = new("nvidia.com/gpu")
		}
		_, err := p.client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		must(t, err)
	}
	var trials []*trial
	for seed := range seedtest.Each(t, fleets) {
		trials = append(trials, newTrial(t, seed, fmt.Sprintf("f%02d-", len(trials))))
	}
	must(t, each(ctx, len(trials), func(ctx context.Context, i int) error { return p.create(ctx, trials[i]) }))

	began, read := time.Now(), p.cluster(ctx)
	results, cures := map[why.Result]int{}, 0
	var decided, copies []*trial
	for _, c := range trials {
		answer := why.Ask(ctx, read, why.Subject{Pod: c.pod}, why.Options{Driver: slicetest.Driver, Now: time.Now(), Limit: 30 * time.Second})
		answer.Reasons = slices.DeleteFunc(answer.Reasons, func(r why.Reason) bool { return strings.Contains(r.Text, "example.com/fleet=") })
		t.Logf("seed %d, after %v: %s", c.seed, time.Since(began).Round(time.Millisecond), answer)
		results[answer.Result]++
		c.nodes = answer.Fits
		if answer.Result == why.Undecided {
			continue
		}
		decided = append(decided, c)
		if answer.Result == why.Fits {
			for i, n := range c.fleet.Nodes {
				if slices.ContainsFunc(answer.Reasons, func(r why.Reason) bool {
					return strings.HasPrefix(r.Text, "undecided") && slices.Contains(r.Nodes, n.Name)
				}) {
					continue
				}
				other := newTrial(t, c.seed, fmt.Sprintf("%sn%d-", c.prefix, i))
				pin(other.pod, other.fleet.Nodes[i].Name)
				if slices.Contains(answer.Fits, n.Name) {
					other.nodes = []string{other.fleet.Nodes[i].Name}
				}
				copies = append(copies, other)
			}
		}
		for i, cure := range answer.Cures {
			if cure.Of == why.OfPod || cure.Of == why.OfNode {
				continue // The nodes of the other fleets are among them.
			}
			other := newTrial(t, c.seed, fmt.Sprintf("%sc%d-", c.prefix, i))
			cure.Nodes, cure.Release = renamed(cure.Nodes, c.prefix, other.prefix), renamed(cure.Release, c.prefix, other.prefix)
			other.cure = &cure
			copies = append(copies, other)
			cures++
		}
	}
	t.Logf("%v, %d cures, asked in %v", results, cures, time.Since(began).Round(time.Millisecond))
	// The allocator takes too long for some claims, and for more of them on a busy machine.
	if !testing.Short() && (results[why.Fits] < fleets/6 || results[why.Waits] < fleets/6 || cures < fleets/3) {
		t.Errorf("the fleets show only %v with %d cures", results, cures)
	}
	must(t, each(ctx, len(copies), func(ctx context.Context, i int) error { return p.create(ctx, copies[i]) }))

	scheduler, err := p.startScheduler()
	must(t, err)
	t.Cleanup(scheduler.stop)
	p.wait(ctx, slices.Concat(decided, copies))
	var cured []*trial
	for _, c := range copies {
		if c.cure != nil {
			c.nodes = c.cure.Nodes
			cured = append(cured, c)
		}
	}
	err = each(ctx, len(cured), func(ctx context.Context, i int) error {
		if err := p.apply(ctx, cured[i]); err != nil {
			return fmt.Errorf("%s: %w", cured[i], err)
		}
		return nil
	})
	must(t, err)
	p.wait(ctx, cured)
	if cause := context.Cause(ctx); cause != nil {
		t.Error(errors.Join(cause, ctx.Err()))
	}
}
