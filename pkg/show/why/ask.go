// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/schedulerfault"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
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
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	a := &asker{Options: o, samples: pool.NewSamples(), Asker: ask.Asker{Evaluator: ask.NewEvaluator(), Classes: resourcelisters.NewDeviceClassLister(indexer)}}
	for _, class := range c.Classes {
		if class != nil {
			_ = indexer.Add(class) // The key function fails only for objects without metadata.
		}
	}
	a.Server, _ = schedulerfault.Parse(c.ServerVersion) // Without a version, judged says so.
	answer := Answer{Subject: s.String()}
	w := c.claims(s, o.Now)
	a.serve(c, &w)
	answer.Notes = w.notes
	if s.Pod != nil && c.Unread.Events {
		answer.note("the pod's Events could not be read, so refused claims and failures of its node are not considered")
	}
	if answer.settle(c, s, w) {
		answer.Reasons = append(answer.Reasons, startFailures(s.Pod, c.Events, o.Now)...)
		return answer
	}
	if c.Unread.Slices {
		answer.Result, answer.Summary = Undecided, answer.Subject+": undecided, because ResourceSlices could not be read."
		return answer
	}
	if c.Unread.Classes {
		answer.Result, answer.Summary = Undecided, answer.Subject+": undecided, because DeviceClasses could not be read."
		return answer
	}
	if reasons := a.invalid(c, w.waiting); len(reasons) > 0 {
		answer.wait("the scheduler does not look at any node", reasons...)
		// The classes that are missing are explained above.
		if slices.ContainsFunc(w.waiting, func(claim *resourceapi.ResourceClaim) bool { return !a.lacksProfiles(c, claim) }) {
			a.review(ctx, &answer, a.view(nil), w.waiting, false)
		}
		return answer
	}
	answer.judged(c)
	if s.Pod == nil && c.Unread.Pods {
		answer.note("pods could not be read, so the answer is for a claim without its pod")
	}
	if c.Nodes == nil {
		answer.note("nodes could not be read, so their taints, cordons and labels are not considered")
	}
	if c.Unread.Rules {
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
	answer.conclude(len(open)+len(closed), shapes, c.Unread)
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
				out = append(out, Reason{Text: fmt.Sprintf("request %s: %s, so there is no DeviceClass %s", q.Name, lacks, q.DeviceClassName)})
			} else if q.Class == nil {
				out = append(out, Reason{Text: fmt.Sprintf("request %s: DeviceClass %q does not exist", q.Name, q.DeviceClassName)})
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

// shape is a set of nodes that the allocator cannot distinguish, and its answer for them.
type shape struct {
	*ask.Alike
	result ask.Outcome
	text   string
}

func group(q *ask.Question, nodes []*ask.Node) (out []*shape) {
	for _, one := range q.Group(nodes) {
		out = append(out, &shape{Alike: one})
	}
	return out
}

// judge asks the allocator once for each shape.
func (a *asker) judge(ctx context.Context, shapes []*shape, claims []*resourceapi.ResourceClaim) {
	needsDevice := slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return len(a.Requests(c.Spec.Devices)) > 0 })
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
func (a *asker) allocate(ctx context.Context, n *ask.Node, released sets.Set[types.NamespacedName], claims []*resourceapi.ResourceClaim) (
	ask.Outcome, string,
) {
	// A call needs about 0.2 ms for a node unless it must try many combinations, or the machine has no processor for it.
	ctx, cancel := context.WithTimeout(ctx, a.Limit/time.Duration(a.questions))
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

// explain finds the reasons of the shapes that cannot allocate the claims, and the cures.
func (a *asker) explain(
	ctx context.Context, c *Cluster, answer *Answer, view *admission.ClusterView, shapes []*shape, claims []*resourceapi.ResourceClaim,
) {
	answer.Reasons = append(answer.Reasons, a.absent(c, claims)...)
	gone := a.gone(c)

	tolerant := withTolerations(claims, nil)
	texts := make([]string, len(shapes))
	ask.Each(len(shapes), func(i int) {
		if texts[i] = a.cause(ctx, shapes[i], claims, tolerant); texts[i] == causeNone && gone[shapes[i].Name] {
			texts[i] = causeGone
		}
	})
	nodes, one := map[string][]string{}, map[string]*shape{}
	for i, s := range shapes {
		nodes[texts[i]], one[texts[i]] = append(nodes[texts[i]], s.Names...), s
	}
	for _, text := range slices.Sorted(maps.Keys(nodes)) {
		slices.Sort(nodes[text])
		reason := Reason{Text: text, Nodes: nodes[text]}
		if len(reason.Nodes) == 1 {
			reason.Text = strings.Replace(text, endCordon, endCordon+one[text].cordoned(a.Driver), 1)
		}
		answer.Reasons = append(answer.Reasons, reason)
	}
	slices.SortStableFunc(answer.Reasons, func(x, y Reason) int {
		if len(x.Nodes) == 0 || len(y.Nodes) == 0 {
			return len(x.Nodes) - len(y.Nodes) // A cause of the whole cluster explains the nodes.
		}
		return len(y.Nodes) - len(x.Nodes)
	})
	var held []*shape
	for i, s := range shapes {
		if strings.HasPrefix(texts[i], CauseHeld) {
			held = append(held, s)
			answer.HeldGPUs += len(s.taken(a.Driver)) * len(s.Names)
			for _, d := range s.devices(a.Driver) {
				if pool.KindOf(d).Type == gpu.KindGPU {
					answer.GPUs += len(s.Names)
				}
			}
		}
	}
	answer.Cures = a.cures(ctx, view, shapes, held, claims)
	for i, c := range answer.Cures {
		at := slices.IndexFunc(shapes, func(s *shape) bool { return len(c.Nodes) == 1 && s.Name == c.Nodes[0] })
		if at >= 0 {
			answer.Cures[i].Text = strings.Replace(c.Text, endCordon, endCordon+shapes[at].cordoned(a.Driver), 1)
		}
	}
}

// devices iterates over the devices of the driver on the node, with their pools.
func (s *shape) devices(driver string) iter.Seq2[string, resourceapi.Device] {
	return func(yield func(string, resourceapi.Device) bool) {
		for _, slice := range s.Slices {
			for _, d := range slice.Spec.Devices {
				if slice.Spec.Driver == driver && !yield(slice.Spec.Pool.Name, d) {
					return
				}
			}
		}
	}
}

// taken returns the GPUs of the driver of which claims have all or a part.
func (s *shape) taken(driver string) map[string]bool {
	type device struct{ pool, name string }
	held := map[device]bool{}
	for _, c := range s.Holders() {
		for r := range pool.Results(c.Status.Allocation, driver) {
			if !ptr.Deref(r.AdminAccess, false) {
				held[device{r.Pool, r.Device}] = true
			}
		}
	}
	out := map[string]bool{}
	for in, d := range s.devices(driver) {
		if held[device{in, d.Name}] {
			for _, g := range pool.GPUsOf(d) {
				out[g] = true
			}
		}
	}
	return out
}

// closed returns the GPUs of the driver with a taint against new claims.
func (s *shape) closed(driver string) map[string]bool {
	out := map[string]bool{}
	for _, d := range s.devices(driver) {
		for _, g := range pool.GPUsOf(d) {
			out[g] = out[g] || len(against(d)) > 0
		}
	}
	return out
}

// taints returns the taints of some GPUs against new claims.
func (s *shape) taints(driver string, of func(gpu string) bool) (out []resourceapi.DeviceTaint) {
	for _, d := range s.devices(driver) {
		if pool.KindOf(d).Type == gpu.KindGPU && of(d.Name) {
			out = append(out, against(d)...)
		}
	}
	return out
}

// against returns the taints of a device against new claims, but for that of devices which are withdrawn while no object asks
// for them.
func against(d resourceapi.Device) []resourceapi.DeviceTaint {
	return slices.DeleteFunc(ask.Untolerated(d, nil), func(t resourceapi.DeviceTaint) bool {
		return t.Key == resourceslices.UnhealthyTaint && t.Value == string(resourceslices.NoDemand)
	})
}

// CauseHeld is the reason of nodes that could allocate the claims without other claims.
const CauseHeld = "other claims hold the devices"

// The other causes for which a node cannot allocate claims.
const (
	causeNone      = "publishes no devices"
	causePart      = "has no devices now, because some of its slices are missing, as while its plugin publishes"
	causeRest      = CauseHeld + ", and its free ones have device taints that the claim does not tolerate"
	causeFree      = "has free GPUs beside those of other claims, and "
	causeGone      = "publishes no devices now, though claims have devices of it: its plugin or NVIDIA's driver does not run"
	causeTaint     = "a device taint that the claim does not tolerate"
	causeBoth      = "device taints that the claim does not tolerate, and other claims"
	causeNever     = "cannot satisfy the claim, even if it were empty"
	causeNow       = "cannot satisfy the claim with the devices that it publishes now, even if it were empty"
	causeLater     = "publishes no such devices now, and does while the claim waits (chart value publish)"
	causePerhaps   = "publishes no such devices now, and does while the claim waits, unless its settings exclude them (chart value publish)"
	causeMore      = "publishes such devices of them while the claim waits (chart value publish)"
	causeMaybe     = "publishes such devices of them while the claim waits, unless its settings exclude them (chart value publish)"
	causeUndecided = "undecided, because the search takes long"
	causeUnknown   = "cannot allocate the claim now; the search for the reason takes long"
)

// cause says why the node of a shape cannot allocate the claims; tolerant are the claims with all tolerations.
func (a *asker) cause(ctx context.Context, s *shape, claims, tolerant []*resourceapi.ResourceClaim) string {
	switch {
	case s.Devices == 0:
		return causeNone
	case s.result == ask.Unknown:
		return causeUndecided
	}
	published := a.published(s)
	if !published.Whole && len(published.Slices) > 0 {
		return causePart
	}
	switch a.onEmpty(ctx, s, claims) {
	case ask.Yes:
		return a.beside(ctx, s, claims, tolerant)
	case ask.Unknown:
		return causeUnknown
	}
	if s.tainted() {
		if result, _ := a.allocate(ctx, s.Node, nil, tolerant); result == ask.Yes {
			return causeTaint + meaning(a.Taints(ctx, s.Node, claims))
		}
		if a.onEmpty(ctx, s, tolerant) == ask.Yes {
			return causeBoth + meaning(a.Taints(ctx, s.Node, claims))
		}
	}
	if s.text != "" {
		return s.text
	}
	if text := a.onDemand(ctx, published, claims, causeLater, causePerhaps); text != "" {
		return text
	}
	if a.samples.Add(published).OnDemand() { // Only one placement of each profile is known.
		return causeNow
	}
	return causeNever
}

// beside says why a node that could allocate the claims if it were empty does not have free devices for them.
func (a *asker) beside(ctx context.Context, s *shape, claims, tolerant []*resourceapi.ResourceClaim) string {
	taken, closed := s.taken(a.Driver), s.closed(a.Driver)
	free := a.published(s).Without(taken)
	if text := a.onDemand(ctx, free.Without(closed), claims, causeMore, causeMaybe); text != "" {
		return causeFree + text
	}
	if !s.tainted() {
		return CauseHeld
	}
	if result, _ := a.allocate(ctx, s.Node, nil, tolerant); result == ask.Yes {
		return causeRest + meaning(a.Taints(ctx, s.Node, claims))
	}
	if a.onDemand(ctx, free, tolerant, causeMore, causeMaybe) != "" {
		return causeRest + meaning(s.taints(a.Driver, func(g string) bool { return !taken[g] }))
	}
	return CauseHeld
}

// onDemand asks whether an empty node with a pool could allocate the claims once it publishes more devices. It returns the first
// text if partitions suffice, the second if groups or monitor devices must be among them, and otherwise nothing.
func (a *asker) onDemand(ctx context.Context, published pool.Pool, claims []*resourceapi.ResourceClaim, partitions, all string) string {
	partitioned := a.samples.Add(published)
	for _, later := range []struct {
		pool pool.Pool
		text string
	}{{partitioned, partitions}, {partitioned.With(gpu.KindGroup, gpu.KindMonitor), all}} {
		if same(later.pool, published) {
			continue
		}
		if result, _ := a.allocate(ctx, ask.Empty(later.pool), nil, claims); result == ask.Yes {
			return later.text
		}
	}
	return ""
}

// endCordon is a command without the names of GPUs.
const endCordon = "kubectl gpu uncordon"

// cordoned returns the node's cordoned GPUs as arguments of a command, or nothing if they are many.
func (s *shape) cordoned(driver string) (arguments string) {
	found := sets.New[string]()
	for _, d := range s.devices(driver) {
		if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == resourceslices.CordonTaint }) {
			if named, err := gpu.ParseName(d.Name); err == nil && named.Kind == gpu.KindGPU {
				found.Insert(" " + s.Name + "/" + d.Name)
			}
		}
	}
	const most = 8
	if found.Len() > most {
		return ""
	}
	return strings.Join(sets.List(found), "")
}

// meaning says what taints mean.
func meaning(taints []resourceapi.DeviceTaint) string {
	found := sets.New[string]()
	for _, t := range taints {
		switch {
		case t.Key == resourceslices.UnhealthyTaint && t.Value == string(resourceslices.NoDemand):
			found.Insert("withdrawn while no object asks for them")
		case t.Key == resourceslices.UnhealthyTaint:
			found.Insert(fmt.Sprintf("unhealthy (%s; kubectl gpu doctor says what to do)", t.Value))
		case t.Key == resourceslices.CordonTaint:
			found.Insert("cordoned by an administrator (" + endCordon + ")")
		case t.Key == resourceslices.ReservedTaint:
			found.Insert("reserved for a pod of higher priority, whose victims leave")
		default:
			found.Insert("the taint " + ask.TaintText(t))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return ": " + strings.Join(sets.List(found), "; ")
}

// possible returns the pool of the driver on a node, with the devices that the node could publish. It has no slices if the
// node publishes all of them.
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

func (s *shape) tainted() bool {
	return slices.ContainsFunc(s.Slices, func(slice ask.Slice) bool {
		return slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 })
	})
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
	view.Timeout, view.OnDemand = a.Limit, onDemand
	return view
}

// review adds what the admission webhook says of the claims: names that no device has, parameters that Prepare refuses. gaveUp
// means that the answer has the error of the scheduler's attempt already.
func (a *asker) review(ctx context.Context, answer *Answer, view *admission.ClusterView, claims []*resourceapi.ResourceClaim, gaveUp bool) {
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
