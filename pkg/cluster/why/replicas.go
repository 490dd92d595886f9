// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/cluster/ask"
)

// maxReplicas bounds the time for a workload of a file.
const maxReplicas = 64

// Refuses reports whether the answer is that an object is refused or could not be judged. Then it says nothing of free
// devices.
func (a Answer) Refuses() bool { return a.Result == Refused || a.Result == Undecided }

// Allowed reports whether a pod of a file would run at once.
func (a Answer) Allowed() bool { return a.Result == Fits || a.Result == Settled }

// AskNew explains a subject of a file as if it were created after those before it: of a workload one pod after the
// other, up to the first that waits. The devices of pods that fit are held in the cluster afterwards.
func AskNew(ctx context.Context, c *Cluster, s Subject, o Options) Answer {
	o.New = true
	all := min(max(s.Replicas, 1), maxReplicas)
	var out Answer
	for i := range all {
		one := s
		if s.Pod != nil && s.Replicas > 1 {
			one.Pod = s.Pod.DeepCopy()
			one.Pod.Name = fmt.Sprintf("%s-%d", s.Pod.Name, i)
		}
		answer := Ask(ctx, c, one, o)
		c.Claims = overlay(c.Claims, answer.Placed)
		if !answer.Allowed() && i > 0 {
			return answer.after(s, out, i)
		}
		answer.Fits = slices.Compact(slices.Sorted(slices.Values(append(answer.Fits, out.Fits...))))
		if out = answer; !answer.Allowed() {
			break
		}
	}
	if s.Replicas > 1 && out.Allowed() {
		out.Subject = s.String()
		out.Summary = fmt.Sprintf("%s: %d of %d replicas fit now, on %s.", s, all, s.Replicas, ask.List(out.Fits))
		if all < s.Replicas {
			out.note("the other replicas were not looked at")
		}
	} else if s.Replicas > 1 {
		out.Summary = fmt.Sprintf("0 of %d replicas fit. %s", s.Replicas, out.Summary)
	}
	return out
}

// after is the answer about a workload of which some pods fit, and the next one waits. The pods of a Job follow each
// other.
func (a Answer) after(s Subject, before Answer, fit int) Answer {
	if s.Ends {
		before.Subject = s.String()
		before.Summary = fmt.Sprintf("%s: %d of %d pods fit at a time, on %s; the others follow when these end.", s,
			fit, s.Replicas, ask.List(before.Fits))
		return before
	}
	a.Subject = s.String()
	a.Summary = fmt.Sprintf("%s: %d of %d replicas fit. The next one%s", s, fit, s.Replicas,
		strings.TrimPrefix(a.Summary, "pod "+podName(s.Pod)+fmt.Sprintf("-%d", fit)))
	return a
}

// place keeps the allocations of a pod that fits, for the pods after it.
func (a *asker) place(ctx context.Context, answer *Answer, s Subject, n nodes, claims []*resourceapi.ResourceClaim) {
	at := slices.IndexFunc(n.open, func(one *shape) bool { return one.result == ask.Yes })
	if s.Pod == nil || at < 0 {
		return
	}
	placed := a.Place(ctx, n.open[at].Node, nil, claims)
	if placed.Outcome != ask.Yes { // The next pod would get the same devices.
		*answer = Answer{Subject: answer.Subject}
		answer.undecided("because the search takes long")
		return
	}
	for i, allocation := range placed.Allocations {
		claim := claims[i].DeepCopy()
		claim.Status.Allocation = &allocation
		claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: s.Pod.Name}}
		answer.Placed = append(answer.Placed, claim)
	}
}
