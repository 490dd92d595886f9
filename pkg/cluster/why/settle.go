// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/waiting"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// settle answers if the scheduler looks at no node, or if that is not known, and reports whether it did.
func (a *asker) settle(ctx context.Context, answer *Answer, s Subject, w wanted) bool {
	if answer.settle(a, s, w) {
		answer.Reasons = append(answer.Reasons, startFailures(s.Pod, a.Events, a.Now)...)
		return true
	}
	for _, needed := range []read.Resource{read.ResourceSlices, read.DeviceClasses} {
		if a.Failed(needed) {
			answer.undecided("because %s could not be read", needed)
			return true
		}
	}
	reasons := a.invalid(w.waiting)
	if len(reasons) == 0 {
		return false
	}
	answer.wait("the scheduler does not look at any node", reasons...)
	// The classes that are missing are explained above.
	if slices.ContainsFunc(w.waiting, func(c *resourceapi.ResourceClaim) bool { return !a.lacksProfiles(c) }) {
		a.review(ctx, answer, a.view(nil), w.waiting, false)
	}
	return true
}

// settle answers if no allocation is to be made, and reports whether it did.
func (a *Answer) settle(by *asker, s Subject, w wanted) bool {
	if s.Pod != nil && s.Pod.DeletionTimestamp != nil || s.Claim != nil && s.Claim.DeletionTimestamp != nil {
		a.Result, a.Summary = Settled, a.Subject+" is being deleted."
		return true
	}
	if p := s.Pod; p != nil {
		switch {
		case waiting.Ended(p):
			a.Result, a.Summary = Settled, fmt.Sprintf("%s has ended (%s).", a.Subject, p.Status.Phase)
			return true
		case p.Spec.NodeName != "":
			bound := by.Bound(p, by.Driver)
			a.Result, a.Summary, a.Reasons, a.Change = bound.Result, bound.Summary, bound.Reasons, bound.Change
			return true
		}
		if reasons := gates(p); len(reasons) > 0 {
			a.wait("the scheduler does not look at it yet", reasons...)
			return true
		}
	}
	if len(w.missing) > 0 {
		text := "a claim is missing"
		if len(w.unserved) > 0 && len(w.missing) <= len(w.unserved) {
			text = "nothing serves its resources"
		}
		a.wait(text, w.missing...)
		return true
	}
	if len(w.unread) > 0 {
		a.undecided("because %s could not be read", ask.List(w.unread))
		return true
	}
	if len(w.large) > 0 {
		a.undecided("because this is too large for the controller's memory: %s", ask.List(w.large))
		return true
	}
	for _, claim := range w.allocated {
		if s.Pod != nil && !resourceclaim.CanBeReserved(claim) && !resourceclaim.IsReservedForPod(s.Pod, claim, true) {
			a.wait("too many pods use a claim", Reason{
				Text: fmt.Sprintf("claim %s has %d consumers, the most that the API allows", ask.NameOf(claim),
					len(claim.Status.ReservedFor)),
			})
			return true
		}
	}
	if len(w.waiting) > 0 {
		return false
	}
	a.Result, a.Summary = Settled, a.Subject+" asks for no device through DRA."
	if len(w.allocated) > 0 {
		a.Summary = fmt.Sprintf("%s: nothing is left to allocate.", a.Subject)
		a.closed(by, s, w)
	}
	for _, claim := range w.allocated {
		a.Reasons = append(a.Reasons, Reason{Text: allocation(claim)})
	}
	a.Reasons = append(a.Reasons, by.otherReasons("the scheduler reports: ", s.Pod)...)
	return true
}

// closed waits if no node takes the pod with the devices of its claims. Either the nodes of the devices do not take it,
// or no node has the devices of all claims.
func (a *Answer) closed(by *asker, s Subject, w wanted) {
	switch {
	case s.Pod == nil:
		return
	case by.Nodes == nil:
		a.note("nodes could not be read, so whether one has the devices of all claims, and takes the pod, is not known")
		return
	}
	var out []Reason
	for _, n := range having(by.Nodes, w.allocated) {
		why := excluded(n, s.Pod, w)
		if len(why) == 0 {
			return
		}
		out = append(out, Reason{Text: why[0].Text, Nodes: []string{n.Name}})
	}
	if len(out) > 0 {
		a.wait("its claims have devices, and the nodes of these devices do not take it", out...)
		return
	}
	for _, c := range w.allocated {
		if len(having(by.Nodes, []*resourceapi.ResourceClaim{c})) == 0 {
			a.wait(fmt.Sprintf("the node with the devices of claim %s does not exist", ask.NameOf(c)))
			return
		}
	}
	// The scheduler frees a claim that no other pod uses, if its devices are of a wrong node.
	used := slices.DeleteFunc(slices.Clone(w.allocated), func(c *resourceapi.ResourceClaim) bool {
		return !slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool {
			return r.UID != s.Pod.UID
		})
	})
	const text = "its claims have devices of different nodes"
	if len(having(by.Nodes, used)) > 0 {
		a.wait(text)
		a.note("kube-scheduler frees a claim that no other pod uses when it next tries the pod. Do not delete the " +
			"claims: the pod needs them")
		return
	}
	a.wait(text + ", and no node can run it while other pods use claims of several nodes")
	a.Change = "End the other pods of its claims but for those of one node, or give the pod claims of its own " +
		"(resourceClaimTemplateName)"
}

// having returns the nodes with the devices of all of some claims.
func having(nodes []*corev1.Node, claims []*resourceapi.ResourceClaim) (out []*corev1.Node) {
	for _, n := range nodes {
		if n != nil && !slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool {
			selector := c.Status.Allocation.NodeSelector
			return selector != nil && !ask.Matches(n, nil, nil, selector)
		}) {
			out = append(out, n)
		}
	}
	return out
}

// allocation says which devices a claim has, and for whom.
func allocation(claim *resourceapi.ResourceClaim) string {
	var devices, users []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, r.Pool+"/"+r.Device)
	}
	for _, r := range claim.Status.ReservedFor {
		users = append(users, r.Name)
	}
	text := fmt.Sprintf("claim %s has %s", ask.NameOf(claim), ask.List(devices))
	if len(users) == 0 {
		return text + ", and no pod uses it"
	}
	return text + ", for " + ask.List(users)
}

// gates says what holds a pod back before the scheduler looks at it.
func gates(pod *corev1.Pod) (out []Reason) {
	for _, g := range pod.Spec.SchedulingGates {
		text := "the pod has the scheduling gate %s; its owner must remove it"
		if strings.HasPrefix(g.Name, "kueue.x-k8s.io/") {
			text = "Kueue has not admitted the pod (scheduling gate %s); look at its Workload and LocalQueue"
		}
		out = append(out, Reason{Text: fmt.Sprintf(text, g.Name)})
	}
	return out
}
