// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/gpu"
)

// asker answers one question.
type asker struct {
	Options
	ask.Asker
	empty sync.Map // emptyKey → ask.Outcome on an empty node
	// samples are the partitions that nodes could publish.
	samples *pool.Samples
	// questions is the number of hard questions for which the time suffices. With few kinds of nodes there are few.
	questions int
}

type emptyKey struct {
	bare   uint64
	claims *resourceapi.ResourceClaim // The first of the claims: each set has its own copies.
}

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

// invalid says which requests the scheduler refuses for all nodes.
func (a *asker) invalid(cluster *Cluster, claims []*resourceapi.ResourceClaim) (out []Reason) {
	for _, c := range claims {
		for _, q := range a.Requests(c.Spec.Devices) {
			profile, partition := a.profileOf(q.DeviceClassName)
			lacks := ""
			if q.Class == nil && partition {
				lacks = a.lacksProfile(cluster, profile)
			}
			if lacks != "" {
				out = append(out,
					Reason{Text: fmt.Sprintf("request %s: %s, so there is no DeviceClass %s", q.Name, lacks,
						q.DeviceClassName)})
			} else if q.Class == nil {
				out = append(out,
					Reason{Text: fmt.Sprintf("request %s: DeviceClass %q does not exist", q.Name, q.DeviceClassName)})
			}
			for _, s := range q.Selectors {
				if s.CEL == nil {
					out = append(out, Reason{Text: fmt.Sprintf("request %s: a selector is of an unknown kind", q.Name)})
				}
			}
		}
		for _, q := range c.Spec.Devices.Requests {
			if q.Exactly == nil && len(q.FirstAvailable) == 0 {
				out = append(out, Reason{Text: fmt.Sprintf("request %s is of an unknown kind", q.Name)})
			}
		}
	}
	return out
}

func group(q *ask.Question, nodes []*ask.Node) (out []*shape) {
	for _, one := range q.Group(nodes) {
		out = append(out, &shape{Alike: one})
	}
	return out
}

// judge asks the allocator once for each shape.
func (a *asker) judge(ctx context.Context, shapes []*shape, claims []*resourceapi.ResourceClaim) {
	needsDevice := slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool {
		return len(a.Requests(c.Spec.Devices)) > 0
	})
	ask.Each(len(shapes), func(i int) {
		s := shapes[i]
		if s.Devices == 0 && needsDevice {
			return
		}
		if ctx.Err() != nil {
			s.result = ask.Unknown
			return
		}
		s.result, s.text = a.allocate(ctx, s.Node, nil, claims)
	})
}

// allocate asks for the claims on a node, without the allocations of the released claims.
func (a *asker) allocate(
	ctx context.Context, n *ask.Node, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim,
) (
	ask.Outcome, string,
) {
	// A call needs about 0.2 ms for a node unless it must try many combinations.
	ctx, cancel := ask.WithProcessorTime(ctx, a.Limit/time.Duration(a.questions))
	defer cancel()
	return a.Allocate(ctx, n, released, claims)
}

// onEmpty asks for the claims on the node without any allocation.
func (a *asker) onEmpty(ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim) ask.Outcome {
	key := emptyKey{s.Bare, claims[0]}
	if known, ok := a.empty.Load(key); ok {
		return known.(ask.Outcome)
	}
	result, _ := a.allocate(ctx, s.Node, s.everyone(), claims)
	if result != ask.Unknown {
		a.empty.Store(key, result)
	}
	return result
}

// possible returns the pool of the driver on a node, with the devices that the node could publish. It has no slices if
// the node publishes all of them.
func (a *asker) possible(s *shape) pool.Pool {
	published := a.published(s)
	p := a.samples.Add(published)
	if !p.OnDemand() && same(p, published) {
		return pool.Pool{}
	}
	return p.With(gpu.KindGroup, gpu.KindMonitor)
}

// same reports whether two pools of a node have the same devices.
func same(a, b pool.Pool) bool {
	return slices.EqualFunc(a.Slices, b.Slices, func(x, y *pool.Slice) bool { return x.Shape == y.Shape })
}

// published returns the pool of the driver on a node.
func (a *asker) published(s *shape) pool.Pool {
	return pool.Of(slices.DeleteFunc(slices.Clone(s.Packed), func(one *pool.Slice) bool {
		return one.Shape.Spec.Driver != a.Driver || one.Node != s.Name
	}))
}

// view returns the view of the admission webhook, of the shapes' devices.
func (a *asker) view(shapes []*shape) *admission.ClusterView {
	seen := sets.New[uint64]()
	var pools []pool.Pool
	onDemand := false
	for _, s := range shapes {
		const enough = 20
		if seen.Has(s.Bare) || len(pools) == enough {
			continue
		}
		seen.Insert(s.Bare)
		p := a.published(s)
		if more := a.possible(s); len(more.Slices) > 0 {
			onDemand, p = true, more
		}
		if p.Whole {
			pools = append(pools, p)
		}
	}
	view := admission.NewClusterView(a.Driver, a.Asker, pools)
	view.SearchFor, view.OnDemand = a.Limit, onDemand
	return view
}

// review adds what the admission webhook says of the claims: names that no device has, parameters that Prepare refuses.
// gaveUp means that the answer has the error of the scheduler's attempt already.
func (a *asker) review(
	ctx context.Context, answer *Answer, view *admission.ClusterView, claims []*resourceapi.ResourceClaim, gaveUp bool,
) {
	for _, c := range claims {
		errs, warnings := view.Explain(ctx, c.Spec)
		for _, text := range errs {
			answer.Notes = append(answer.Notes, "The driver refuses the claim: "+text)
		}
		answer.Notes = append(answer.Notes, slices.DeleteFunc(warnings, func(text string) bool {
			return gaveUp && strings.HasPrefix(text, admission.GiveUp)
		})...)
	}
}

// age is a duration for people.
func age(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d d", int(d.Hours())/24)
	case d >= time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	case d >= time.Minute:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
}
