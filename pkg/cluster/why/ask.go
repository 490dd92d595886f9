// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

// Ask explains whether the scheduler can allocate the subject's claims, and what would let it. It returns an answer for
// any objects. The limit begins once the nodes are grouped, which takes a time in proportion to their number.
func Ask(ctx context.Context, c *Cluster, s Subject, o Options) Answer {
	o.Limit = cmp.Or(o.Limit, DefaultLimit)
	// Without a version, judged says so.
	a := &asker{Options: o, samples: pool.NewSamples(), Asker: ask.Of(c.Classes, c.ServerVersion)}
	answer := Answer{Subject: s.String()}
	w := c.claims(s, o.Now)
	a.serve(c, &w)
	answer.Notes = w.notes
	if s.Pod != nil && c.Failed(read.Events) {
		answer.note("the pod's Events could not be read, so refused claims and failures of its node are not considered")
	}
	if answer.settle(c, s, w, o.Driver) {
		answer.Reasons = append(answer.Reasons, startFailures(s.Pod, c.Events, o.Now)...)
		return answer
	}
	if c.Failed(read.ResourceSlices) {
		answer.Result, answer.Summary = Undecided, answer.Subject+
			": undecided, because ResourceSlices could not be read."
		return answer
	}
	if c.Failed(read.DeviceClasses) {
		answer.Result, answer.Summary = Undecided, answer.Subject+
			": undecided, because DeviceClasses could not be read."
		return answer
	}
	if reasons := a.invalid(c, w.waiting); len(reasons) > 0 {
		answer.wait("the scheduler does not look at any node", reasons...)
		// The classes that are missing are explained above.
		if slices.ContainsFunc(w.waiting, func(claim *resourceapi.ResourceClaim) bool {
			return !a.lacksProfiles(c, claim)
		}) {
			a.review(ctx, &answer, a.view(nil), w.waiting, false)
		}
		return answer
	}
	answer.judged(c)
	if s.Pod == nil && c.Failed(read.ClaimPods) {
		answer.note("pods could not be read, so the answer is for a claim without its pod")
	}
	if c.Nodes == nil {
		answer.note("nodes could not be read, so their taints, cordons and labels are not considered")
	}
	if c.Failed(read.DeviceTaintRules) {
		answer.note("DeviceTaintRules could not be read, so their taints are not considered")
	}
	byNode := a.byNode(c)
	a.samples.LearnAll(byNode)
	question := a.Question(w.waiting, c.Rules)
	var open, closed []*ask.Node
	excludedBy := map[string]string{}
	for _, one := range ask.Nodes(c.Nodes, c.Slices, c.Claims) {
		if text := excluded(one.Node, s.Pod, w); text != "" {
			excludedBy[one.Name] = text
			closed = append(closed, one)
		} else {
			open = append(open, one)
		}
	}
	shapes, others := group(question, open), group(question, closed)
	a.questions = min(20, 4*max(1, len(shapes)+len(others)))
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	a.judge(ctx, slices.Concat(shapes, others), w.waiting)
	answer.conclude(len(open)+len(closed), shapes, c.States)
	view := a.view(shapes)
	gaveUp := slices.ContainsFunc(shapes, func(s *shape) bool { return s.result == ask.Fatal })
	switch {
	case answer.Result == Fits:
	case gaveUp:
		answer.Cures = a.relax(ctx, shapes[:min(len(shapes), a.most(searched))], a.corrections(view, w.waiting), a.now)
	default:
		a.explain(ctx, c, &answer, view, shapes, w.waiting)
	}
	if slices.ContainsFunc(answer.Cures, func(c Cure) bool { return c.Claims != nil && !c.Outside }) {
		answer.Change = s.change()
	}
	answer.addExcluded(others, excludedBy)
	answer.reconsider(otherReasons("the scheduler also reports: ", s.Pod, c.Events))
	a.review(ctx, &answer, view, w.waiting, gaveUp)
	if o.Devices {
		for _, one := range slices.Concat(shapes, others) {
			answer.Devices = append(answer.Devices, a.Obstacles(ctx, one.Node, w.waiting)...)
		}
	}
	return answer
}
