// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
)

// Of names the kind of object that a cure changes.
type Of string

// The objects that cures change. The GPU is changed by its node or its administrator.
const (
	OfPod    Of = "pod"
	OfClaim  Of = "claim"
	OfHolder Of = "holder"
	OfNode   Of = "node"
	OfGPU    Of = "gpu"
)

// Cure is a change after which a node can allocate the claims.
type Cure struct {
	Text string `json:"text"`
	Of   Of     `json:"changes"`
	// Nodes can allocate the claims then; other nodes perhaps too.
	Nodes []string `json:"nodes"`
	// Release are the claims that must end first, as namespace/name.
	Release []string `json:"release,omitempty"`
	// End says how the claims to release end, and is a part of the text.
	End string `json:"-"`
	// Claims are the changed claims, if the claims must change; otherwise nil.
	Claims []*resourceapi.ResourceClaim `json:"-"`
	// Outside means that a thing beside the claims can change instead, such as a cordon.
	Outside bool `json:"-"`
}

// Bounds of the search for cures.
const (
	maxShapes      = 64
	maxHeldShapes  = 16
	maxBriefShapes = 4 // of each search, with Options.Brief
	maxReleases    = 3
)

// everyone returns the names of all claims that hold devices of the node.
func (s *shape) everyone() sets.Set[types.NamespacedName] {
	out := sets.New[types.NamespacedName]()
	for _, c := range s.Holders() {
		out.Insert(ask.NameOf(c))
	}
	return out
}

// cures returns the smallest changes that help: claims that end on the held shapes, and changes of the claims on any.
func (a *asker) cures(
	ctx context.Context, view *admission.ClusterView, shapes, held []*shape, claims []*resourceapi.ResourceClaim,
) []Cure {
	var usable []*shape
	for _, s := range shapes {
		if s.Devices > 0 && s.result != ask.Unknown {
			usable = append(usable, s)
		}
	}
	usable = a.searched(usable, maxShapes)
	out := a.releases(ctx, held, claims)
	changes := append(a.corrections(view, claims), a.relaxations(usable, claims)...)
	out = append(out, a.relax(ctx, usable, changes, false)...)
	if len(out) == 0 {
		changes = slices.DeleteFunc(changes, func(r relaxation) bool { return strings.HasPrefix(r.group, "class ") })
		out = a.relax(ctx, usable, changes, true)
	}
	for i, c := range out {
		out[i].Text = nameCordoned(c.Text, c.Nodes, shapes)
	}
	return out
}

// searched returns the shapes of a search.
func (a *asker) searched(shapes []*shape, limit int) []*shape {
	if a.Brief {
		limit = maxBriefShapes
	}
	return shapes[:min(len(shapes), limit)]
}

// releases returns the smallest sets of claims without which a node can allocate the claims.
func (a *asker) releases(ctx context.Context, held []*shape, claims []*resourceapi.ResourceClaim) (out []Cure) {
	slices.SortStableFunc(held, func(x, y *shape) int { return len(x.everyone()) - len(y.everyone()) })
	for _, s := range a.searched(held, maxHeldShapes) {
		for _, set := range a.smallest(ctx, s, claims) {
			out = append(out, a.release(s, set))
		}
	}
	slices.SortStableFunc(out, func(x, y Cure) int { return len(x.Release) - len(y.Release) })
	return out[:min(len(out), maxReleases)]
}

// smallest returns the single claims whose end suffices, or one set of which no claim can stay.
func (a *asker) smallest(
	ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim,
) (out [][]*resourceapi.ResourceClaim) {
	holders := s.Holders()
	for _, h := range holders {
		if a.fits(ctx, s.Node, sets.New(ask.NameOf(h)), claims) {
			out = append(out, []*resourceapi.ResourceClaim{h})
		}
		if len(out) == maxReleases || ctx.Err() != nil {
			return out
		}
	}
	if len(out) > 0 {
		return out
	}
	// No single claim suffices. All leave, and each comes back unless its return prevents the allocation: one question
	// for each claim, where to try all sets of two and three would need thousands.
	gone := s.everyone()
	if !a.fits(ctx, s.Node, gone, claims) {
		return nil
	}
	var needed []*resourceapi.ResourceClaim
	for _, h := range holders {
		gone.Delete(ask.NameOf(h))
		if !a.fits(ctx, s.Node, gone, claims) {
			gone.Insert(ask.NameOf(h))
			needed = append(needed, h)
		}
	}
	return [][]*resourceapi.ResourceClaim{needed}
}

func (a *asker) release(s *shape, set []*resourceapi.ResourceClaim) Cure {
	c := Cure{Of: OfHolder, Nodes: []string{s.Node.Name}}
	var texts []string
	leaked, foreign := true, 0
	for _, one := range set {
		c.Release = append(c.Release, ask.NameOf(one).String())
		if a.Reader != "" && one.Namespace != a.Reader {
			foreign++
		} else {
			texts = append(texts, a.holder(one))
		}
		leaked = leaked && len(one.Status.ReservedFor) == 0
	}
	verb := "wait until it ends"
	switch {
	case leaked && len(set) == 1:
		verb = "no pod uses it: delete it if it is not needed"
	case leaked:
		verb = "no pod uses them: delete them if they are not needed"
	case len(set) > 1:
		verb = "wait until they end"
	}
	noun := "claim "
	if len(set) > 1 {
		noun = "claims "
	}
	switch {
	case foreign == len(set) && foreign == 1:
		noun = "a claim of another namespace"
	case foreign == len(set):
		noun = fmt.Sprintf("%d claims of other namespaces", foreign)
	case foreign > 0:
		texts = append(texts, fmt.Sprintf("%d of other namespaces", foreign))
	}
	c.End = verb
	c.Text = fmt.Sprintf("%s%s must end (%s)", noun, ask.List(texts), verb)
	return c
}

// holder describes a claim by its pod and age.
func (a *asker) holder(c *resourceapi.ResourceClaim) string {
	since := c.CreationTimestamp.Time
	if at := c.Status.Allocation.Devices; len(at.Results) > 0 && c.Status.Allocation.AllocationTimestamp != nil {
		since = c.Status.Allocation.AllocationTimestamp.Time
	}
	var parts []string
	for _, r := range c.Status.ReservedFor {
		parts = append(parts, strings.TrimSuffix(r.Resource, "s")+" "+r.Name)
	}
	text := "no pod"
	if len(parts) > 0 {
		text = ask.List(parts)
	}
	if !since.IsZero() && !a.Now.IsZero() {
		text += ", " + age(a.Now.Sub(since).Round(time.Second))
	}
	return fmt.Sprintf("%s (%s)", ask.NameOf(c), text)
}

// relax tries each change on the shapes. A cure has all shapes on which the change helps beside other claims, or the
// first on which it helps after the end of others.
func (a *asker) relax(ctx context.Context, shapes []*shape, changes []relaxation, afterEnd bool) (out []Cure) {
	ask.Each(len(changes), func(i int) {
		r := &changes[i]
		for _, s := range shapes {
			switch {
			case ctx.Err() != nil:
				return
			case !afterEnd && a.fits(ctx, s.Node, nil, r.Claims):
				r.Nodes = append(r.Nodes, s.Names...)
			case afterEnd && a.onEmpty(ctx, s, r.Claims) == ask.Yes:
				if sets := a.smallest(ctx, s, r.Claims); len(sets) > 0 {
					end := a.release(s, sets[0])
					r.Text, r.Nodes, r.Release, r.End = r.Text+", and "+end.Text, end.Nodes, end.Release, end.End
					return
				}
			}
		}
	})
	used := sets.New[string]()
	for _, r := range changes {
		if r.Nodes == nil || used.Has(r.group) {
			continue
		}
		if r.group != "" {
			used.Insert(r.group)
		}
		if r.less != nil && !afterEnd {
			a.refine(ctx, shapes, &r)
		}
		slices.Sort(r.Nodes)
		out = append(out, r.Cure)
	}
	return out
}

// refine raises the amount of a change to the largest whole number of Gi, Mi or units that helps.
func (a *asker) refine(ctx context.Context, shapes []*shape, r *relaxation) {
	to, unit := *r.less, int64(1)
	for _, larger := range []int64{1 << 20, 1 << 30} {
		if to.value.Value() >= larger {
			unit = larger
		}
	}
	low, high := to.value.Value()/unit, (to.above-1)/unit
	for low < high {
		middle := (low + high + 1) / 2 // Rounded up: low helps already, so a middle of low would never end.
		to.value = *resource.NewQuantity(middle*unit, resource.BinarySI)
		try := less(r.Claims, to)
		for _, s := range shapes {
			if slices.Contains(r.Nodes, s.Names[0]) && a.fits(ctx, s.Node, nil, try.Claims) {
				try.Nodes = append(try.Nodes, s.Names...)
			}
		}
		if try.Nodes == nil {
			high = middle - 1
		} else {
			low, *r = middle, try
		}
	}
}
