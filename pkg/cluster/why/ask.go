// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
)

// Ask explains whether the scheduler can allocate the subject's claims, and what would let it. It returns an answer for
// any objects. Each step has a file with its name: subject, nodes, judge, cause, cure, text. The limit begins once the
// nodes are grouped, which takes a time in proportion to their number.
func Ask(ctx context.Context, c *Cluster, s Subject, o Options) Answer {
	o.Limit = cmp.Or(o.Limit, DefaultLimit)
	// Without a version, judgedBy says so.
	a := &asker{Cluster: c, Options: o, Asker: ask.Of(c.Classes, c.ServerVersion), samples: pool.NewSamples()}
	w := c.claims(s, o.Now)
	a.serve(&w)
	answer := Answer{Subject: s.String(), Notes: w.notes}
	if s.Pod != nil && c.Failed(read.Events) {
		answer.note("the pod's Events could not be read, so refused claims and failures of its node are not considered")
	}
	if a.settle(ctx, &answer, s, w) {
		return answer // No node is asked: the scheduler does not try, or has nothing to allocate.
	}
	answer.judgedBy(c, s)
	nodes := a.nodes(s.Pod, w)
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	a.judge(ctx, nodes.all(), w.waiting)
	answer.conclude(nodes, c.States)
	view := a.view(nodes.all())
	if denied := a.denied(ctx, view, w); o.New && len(denied) > 0 {
		answer.Fits, answer.Reasons = nil, nil
		answer.refused(strings.Join(denied, "; "))
		return answer
	}
	fatal := slices.ContainsFunc(nodes.open, func(s *shape) bool { return s.result == ask.Fatal })
	switch {
	case answer.Result == Fits: // There is nothing to explain.
		if o.New {
			a.place(ctx, &answer, s, nodes, w.waiting)
		}
	case fatal: // The scheduler's attempt fails on all nodes, so only other selectors help.
		answer.Cures = a.relax(ctx, a.searched(nodes.open, maxShapes), a.corrections(view, w.waiting), false)
	default:
		found := a.causes(ctx, nodes.open, w.waiting)
		answer.Reasons, answer.GPUs, answer.HeldGPUs = found.reasons, found.gpus, found.heldGPUs
		answer.Cures = a.cures(ctx, view, nodes.open, found.held, w.waiting)
	}
	if answer.Result != Fits {
		answer.Cures = append(nodes.opened(), answer.Cures...)
	}
	if slices.ContainsFunc(answer.Cures, func(c Cure) bool { return c.Claims != nil && !c.Outside }) {
		answer.Change = s.change()
	}
	answer.addExcluded(nodes)
	answer.reconsider(a.otherReasons("the scheduler also reports: ", s.Pod), a.silence(s.Pod))
	a.review(ctx, &answer, view, w.waiting, fatal)
	if o.Devices {
		for _, one := range nodes.all() {
			answer.Devices = append(answer.Devices, a.Obstacles(ctx, one.Node, w.waiting)...)
		}
	}
	return answer
}
