// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpu-dra-driver/pkg/admission"
	"gpu-dra-driver/pkg/fleet"
)

// asker answers one question.
type asker struct {
	Options
	classes  classes
	compiled *cel.Cache
	trials   sync.Map // trial → bool
	reader   *reader
	// empty holds the outcomes on empty nodes, by shape.bare and claims.
	mu    sync.Mutex
	empty map[emptyKey]outcome
}

type emptyKey struct {
	bare   uint64
	claims *resourceapi.ResourceClaim // The first of the claims: each set has its own copies.
}

// Ask explains whether the scheduler can allocate the subject's claims, and what would let it. It returns an answer for
// any objects. The limit begins once the nodes are grouped, which takes a time in proportion to their number.
func Ask(ctx context.Context, c *Cluster, s Subject, o Options) Answer {
	a := &asker{
		Options: o, classes: classesOf(c.Classes), compiled: cel.NewCache(500, cel.Features{EnableConsumableCapacity: true}),
		empty: map[emptyKey]outcome{},
	}
	answer := Answer{Subject: s.String()}
	w := c.claims(s)
	answer.Notes = w.notes
	if answer.settle(c, s, w) {
		return answer
	}
	if reasons := a.invalid(w.waiting); len(reasons) > 0 {
		answer.wait("the scheduler does not look at any node", reasons...)
		a.review(ctx, &answer, nil, w.waiting)
		return answer
	}
	a.reader = newReader(w.waiting, a.classes, c.Rules)
	var open, closed []*site
	excludedBy := map[string]string{}
	for _, one := range c.sites() {
		if text := excluded(one.node, s.Pod, w); text != "" {
			excludedBy[one.node.Name] = text
			closed = append(closed, one)
		} else {
			open = append(open, one)
		}
	}
	shapes, others := a.reader.shapes(open), a.reader.shapes(closed)
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.Limit, DefaultLimit))
	defer cancel()
	a.judge(ctx, slices.Concat(shapes, others), w.waiting)
	answer.conclude(a, len(open)+len(closed), shapes)
	if answer.Result != Fits && !fatally(shapes) {
		a.explain(ctx, &answer, shapes, w.waiting)
	}
	answer.addExcluded(others, excludedBy)
	if s.Pod != nil {
		for _, text := range otherReasons(s.Pod, c.Events) {
			answer.Reasons = append(answer.Reasons, Reason{Text: "the scheduler also reports: " + text})
		}
	}
	a.review(ctx, &answer, shapes, w.waiting)
	if o.Devices {
		for _, one := range slices.Concat(shapes, others) {
			answer.Devices = append(answer.Devices, a.obstacles(ctx, one.site, w.waiting)...)
		}
	}
	return answer
}

// invalid says which requests the scheduler refuses for all nodes.
func (a *asker) invalid(claims []*resourceapi.ResourceClaim) (out []Reason) {
	for _, c := range claims {
		requests := a.requests([]*resourceapi.ResourceClaim{c})
		for _, q := range requests {
			if q.class == nil {
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

// judge asks the allocator once for each shape.
func (a *asker) judge(ctx context.Context, shapes []*shape, claims []*resourceapi.ResourceClaim) {
	each(shapes, func(s *shape) {
		if s.devices == 0 && a.needsDevice(claims) {
			return
		}
		if ctx.Err() != nil {
			s.result = unknown
			return
		}
		s.result, s.text = a.allocate(ctx, s.site, nil, claims)
	})
}

// needsDevice reports whether a request needs a device on the node.
func (a *asker) needsDevice(claims []*resourceapi.ResourceClaim) bool {
	return len(a.requests(claims)) > 0
}

// each calls f for all elements, some at a time.
func each[T any](all []T, f func(T)) {
	var work sync.WaitGroup
	next := make(chan T)
	for range runtime.GOMAXPROCS(0) {
		work.Go(func() {
			for one := range next {
				f(one)
			}
		})
	}
	for _, one := range all {
		next <- one
	}
	close(next)
	work.Wait()
}

// onEmpty asks for the claims on the node without any allocation.
func (a *asker) onEmpty(ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim) outcome {
	key := emptyKey{s.bare, claims[0]}
	a.mu.Lock()
	known, ok := a.empty[key]
	a.mu.Unlock()
	if ok {
		return known
	}
	result, _ := a.allocate(ctx, s.site, s.everyone(), claims)
	if result != unknown {
		a.mu.Lock()
		a.empty[key] = result
		a.mu.Unlock()
	}
	return result
}

// explain finds the reasons of the shapes that cannot allocate the claims, and the cures.
func (a *asker) explain(ctx context.Context, answer *Answer, shapes []*shape, claims []*resourceapi.ResourceClaim) {
	tolerant := withTolerations(claims, nil)
	texts := make([]string, len(shapes))
	index := make([]int, len(shapes))
	for i := range index {
		index[i] = i
	}
	each(index, func(i int) { texts[i] = a.cause(ctx, shapes[i], claims, tolerant) })
	nodes := map[string][]string{}
	for i, s := range shapes {
		nodes[texts[i]] = append(nodes[texts[i]], s.nodes...)
	}
	for _, text := range slices.Sorted(maps.Keys(nodes)) {
		slices.Sort(nodes[text])
		answer.Reasons = append(answer.Reasons, Reason{Text: text, Nodes: nodes[text]})
	}
	slices.SortStableFunc(answer.Reasons, func(x, y Reason) int { return len(y.Nodes) - len(x.Nodes) })
	var held []*shape
	for i, s := range shapes {
		if texts[i] == causeHeld {
			held = append(held, s)
		}
	}
	answer.Cures = a.cures(ctx, shapes, held, claims)
}

// The causes for which a node cannot allocate claims.
const (
	causeNone      = "publishes no devices"
	causeHeld      = "other claims hold the devices"
	causeTaint     = "a device taint that the claim does not tolerate"
	causeBoth      = "device taints that the claim does not tolerate, and other claims"
	causeNever     = "cannot satisfy the claim, even if it were empty"
	causeUndecided = "undecided, because the search takes long"
	causeUnknown   = "cannot allocate the claim now; the search for the reason takes long"
)

// cause says why the node of a shape cannot allocate the claims; tolerant are the claims with all tolerations.
func (a *asker) cause(ctx context.Context, s *shape, claims, tolerant []*resourceapi.ResourceClaim) string {
	switch {
	case s.devices == 0:
		return causeNone
	case s.result == unknown:
		return causeUndecided
	}
	switch a.onEmpty(ctx, s, claims) {
	case yes:
		return causeHeld
	case unknown:
		return causeUnknown
	}
	if s.tainted() {
		if result, _ := a.allocate(ctx, s.site, nil, tolerant); result == yes {
			return causeTaint
		}
		if a.onEmpty(ctx, s, tolerant) == yes {
			return causeBoth
		}
	}
	if s.text != "" {
		return s.text
	}
	return causeNever
}

func (s *shape) tainted() bool {
	return slices.ContainsFunc(s.slices, func(slice *resourceapi.ResourceSlice) bool {
		return slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 })
	})
}

// review adds what the admission webhook says of the claims: names that no device has, parameters that Prepare refuses.
func (a *asker) review(ctx context.Context, answer *Answer, shapes []*shape, claims []*resourceapi.ResourceClaim) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, c := range a.classes {
		_ = indexer.Add(c) // The key function fails only for objects without metadata.
	}
	store, seen := &fleet.Shapes{}, sets.New[uint64]()
	var pools []fleet.Pool
	sampled := false
	for _, s := range shapes {
		const enough = 20
		if seen.Has(s.bare) || len(pools) == enough {
			continue
		}
		seen.Insert(s.bare)
		var trimmed []*fleet.Slice
		for _, slice := range s.slices {
			if slice.Spec.Driver == a.Driver && deref(slice.Spec.NodeName) == s.node.Name {
				one := store.Trim(slice.DeepCopy())
				trimmed = append(trimmed, &one)
			}
		}
		p := fleet.PoolOf(trimmed)
		if p.Sampled() {
			sampled, p = true, p.WithGroups()
		}
		if p.Whole {
			pools = append(pools, p)
		}
	}
	view := admission.NewClusterView(a.Driver, resourcelisters.NewDeviceClassLister(indexer), pools, admission.NewCache())
	view.Timeout, view.Sampled = cmp.Or(a.Limit, DefaultLimit), sampled
	for _, c := range claims {
		errs, warnings := view.Explain(ctx, c.Spec)
		for _, text := range errs {
			answer.Notes = append(answer.Notes, "The driver refuses the claim: "+text)
		}
		answer.Notes = append(answer.Notes, warnings...)
	}
}

func fatally(shapes []*shape) bool {
	return slices.ContainsFunc(shapes, func(s *shape) bool { return s.result == fatal })
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

// list joins up to three names.
func list(all []string) string {
	const most = 3
	if len(all) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}
