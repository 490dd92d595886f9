// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// causes say why no node can allocate the claims.
type causes struct {
	reasons []Reason
	// held are the shapes whose reason is CauseHeld. They have so many GPUs; claims have heldGPUs of them.
	held           []*shape
	gpus, heldGPUs int
}

// causes finds the reasons of the shapes, none of which can allocate the claims.
func (a *asker) causes(ctx context.Context, shapes []*shape, claims []*resourceapi.ResourceClaim) (out causes) {
	out.reasons = a.absent(claims)
	gone := a.gone()
	tolerant := withTolerations(claims, nil)
	texts := make([]string, len(shapes))
	ask.Each(len(shapes), func(i int) {
		if texts[i] = a.cause(ctx, shapes[i], claims, tolerant); texts[i] == causeNone && gone[shapes[i].Name] {
			texts[i] = causeGone
		}
	})
	byText := map[string][]string{}
	for i, s := range shapes {
		byText[texts[i]] = append(byText[texts[i]], s.Names...)
		if !strings.HasPrefix(texts[i], CauseHeld) {
			continue
		}
		out.held = append(out.held, s)
		out.heldGPUs += len(s.taken()) * len(s.Names)
		for _, d := range s.devices() {
			if pool.KindOf(d).Type == gpu.KindGPU {
				out.gpus += len(s.Names)
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(byText)) {
		slices.Sort(byText[text])
		out.reasons = append(out.reasons, Reason{nameCordoned(text, byText[text], shapes), byText[text]})
	}
	slices.SortStableFunc(out.reasons, func(x, y Reason) int {
		if len(x.Nodes) == 0 || len(y.Nodes) == 0 {
			return len(x.Nodes) - len(y.Nodes) // A cause of the whole cluster explains the nodes.
		}
		return len(y.Nodes) - len(x.Nodes)
	})
	return out
}

// CauseHeld is the reason of nodes that could allocate the claims without other claims.
const CauseHeld = "other claims hold the devices"

// The other causes for which a node cannot allocate claims.
const (
	causeNone = "publishes no devices"
	causePart = "has no devices now, because some of its slices are missing, as while its plugin publishes"
	causeRest = CauseHeld + ", and its free ones have device taints that the claim does not tolerate"
	causeFree = "has free GPUs beside those of other claims, and "
	causeGone = "publishes no devices now, though claims have devices of it: its plugin or NVIDIA's driver does " +
		"not run"
	causeTaint   = "a device taint that the claim does not tolerate"
	causeBoth    = "device taints that the claim does not tolerate, and other claims"
	causeNever   = "cannot satisfy the claim, even if it were empty"
	causeNow     = "cannot satisfy the claim with the devices that it publishes now, even if it were empty"
	causeLater   = "publishes no such devices now, and does while the claim waits (chart value publish)"
	causePerhaps = "publishes no such devices now, and does while the claim waits, unless its settings exclude " +
		"them (chart value publish)"
	causeMore  = "publishes such devices of them while the claim waits (chart value publish)"
	causeMaybe = "publishes such devices of them while the claim waits, unless its settings exclude them (chart " +
		"value publish)"
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
	published := s.published()
	if !published.Whole && len(published.Slices) > 0 {
		return causePart
	}
	switch a.onEmpty(ctx, s, claims) {
	case ask.Yes:
		return a.beside(ctx, s, claims, tolerant)
	case ask.Unknown:
		return causeUnknown
	}
	// If the claims fit with all taints tolerated, the taints are the cause. The second question is for nodes on which
	// neither the taints nor other claims alone are.
	if s.tainted() {
		if a.fits(ctx, s.Node, nil, tolerant) {
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
		return a.withRoom(ctx, s, claims, causeNow)
	}
	return a.withRoom(ctx, s, claims, causeNever)
}

// withRoom adds to a cause how many devices the empty node has room for.
func (a *asker) withRoom(
	ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim, cause string,
) string {
	short, err := a.TooFew(ctx, s.Node, s.everyone(), a.OfAll(claims))
	if err != nil || short == nil || short.Most == 0 && !short.Beside {
		return cause // Another reason says that no device matches.
	}
	return cause + ": it " + short.String()
}

// beside says why a node that could allocate the claims if it were empty does not have free devices for them.
func (a *asker) beside(ctx context.Context, s *shape, claims, tolerant []*resourceapi.ResourceClaim) string {
	taken, published := s.taken(), s.published()
	gone := s.closed()
	for g, held := range taken {
		gone[g] = gone[g] || held
	}
	// A GPU that another claim has is not partitioned for this one, and a closed GPU gets no claim: only the others can
	// publish more devices that help.
	if text := a.onDemand(ctx, published.Without(gone), claims, causeMore, causeMaybe); text != "" {
		return causeFree + text
	}
	if !s.tainted() {
		return CauseHeld
	}
	if a.fits(ctx, s.Node, nil, tolerant) {
		return causeRest + meaning(a.Taints(ctx, s.Node, claims))
	}
	if a.onDemand(ctx, published.Without(taken), tolerant, causeMore, causeMaybe) != "" {
		return causeRest + meaning(s.taints(func(g string) bool { return !taken[g] }))
	}
	return CauseHeld
}

// onDemand asks whether an empty node with a pool could allocate the claims once it publishes more devices. It returns
// the first text if partitions suffice, the second if groups or monitor devices must be among them, and otherwise
// nothing.
func (a *asker) onDemand(
	ctx context.Context, published pool.Pool, claims []*resourceapi.ResourceClaim, partitions, all string,
) string {
	partitioned := a.samples.Add(published)
	for _, later := range []struct {
		pool pool.Pool
		text string
	}{{partitioned, partitions}, {partitioned.With(gpu.KindGroup, gpu.KindMonitor), all}} {
		if sameDevices(later.pool, published) {
			continue
		}
		if a.fits(ctx, ask.Empty(later.pool), nil, claims) {
			return later.text
		}
	}
	return ""
}

// uncordonCommand is a command without the names of GPUs.
const uncordonCommand = "kubectl gpu uncordon"

// meaning says what taints mean.
func meaning(taints []resourceapi.DeviceTaint) string {
	found := sets.New[string]()
	for _, t := range taints {
		switch {
		case t.Key == wire.UnhealthyTaint && t.Value == string(resourceslices.NoDemand):
			found.Insert("withdrawn while no object asks for them")
		case t.Key == wire.UnhealthyTaint:
			found.Insert(fmt.Sprintf("unhealthy (%s; kubectl gpu doctor says what to do)", t.Value))
		case t.Key == wire.CordonTaint:
			found.Insert("cordoned by an administrator (" + uncordonCommand + ")")
		case t.Key == wire.ReservedTaint:
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
