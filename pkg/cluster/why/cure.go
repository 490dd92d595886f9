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

// Cure is a change after which a node can allocate the claims.
type Cure struct {
	Text string `json:"text"`
	// Nodes can allocate the claims then; other nodes perhaps too.
	Nodes []string `json:"nodes"`
	// Release are the claims that must end first, as namespace/name.
	Release []string `json:"release,omitempty"`
	// Claims are the changed claims, if the claims must change; otherwise nil.
	Claims []*resourceapi.ResourceClaim `json:"-"`
	// Outside means that a thing beside the claims can change instead, such as a cordon.
	Outside bool `json:"-"`
}

// Bounds of the search for cures.
const (
	searched  = 64 // shapes
	releasing = 16 // shapes
	brief     = 4  // shapes of each search, with Options.Brief
	cureLimit = 3  // cures of one group
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
	usable = usable[:min(len(usable), a.most(searched))]
	out := a.releases(ctx, held, claims)
	changes := append(a.corrections(view, claims), a.relaxations(usable, claims)...)
	out = append(out, a.relax(ctx, usable, changes, a.now)...)
	if len(out) == 0 {
		changes = slices.DeleteFunc(changes, func(r relaxation) bool { return strings.HasPrefix(r.group, "class ") })
		out = a.relax(ctx, usable, changes, a.later)
	}
	return out
}

// most returns the number of shapes for a search.
func (a *asker) most(shapes int) int {
	if a.Brief {
		return brief
	}
	return shapes
}

// releases returns the smallest sets of claims without which a node can allocate the claims.
func (a *asker) releases(ctx context.Context, held []*shape, claims []*resourceapi.ResourceClaim) (out []Cure) {
	slices.SortStableFunc(held, func(x, y *shape) int { return len(x.everyone()) - len(y.everyone()) })
	for _, s := range held[:min(len(held), a.most(releasing))] {
		for _, set := range a.smallest(ctx, s, claims) {
			out = append(out, a.release(s, set))
		}
	}
	slices.SortStableFunc(out, func(x, y Cure) int { return len(x.Release) - len(y.Release) })
	return out[:min(len(out), cureLimit)]
}

// smallest returns the single claims whose end suffices, or one set of which no claim can stay.
func (a *asker) smallest(
	ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim,
) (out [][]*resourceapi.ResourceClaim) {
	holders := s.Holders()
	for _, h := range holders {
		if result, _ := a.allocate(ctx, s.Node, sets.New(ask.NameOf(h)), claims); result == ask.Yes {
			out = append(out, []*resourceapi.ResourceClaim{h})
		}
		if len(out) == cureLimit || ctx.Err() != nil {
			return out
		}
	}
	if len(out) > 0 {
		return out
	}
	gone := s.everyone()
	if result, _ := a.allocate(ctx, s.Node, gone, claims); result != ask.Yes {
		return nil
	}
	var needed []*resourceapi.ResourceClaim
	for _, h := range holders {
		gone.Delete(ask.NameOf(h))
		if result, _ := a.allocate(ctx, s.Node, gone, claims); result != ask.Yes {
			gone.Insert(ask.NameOf(h))
			needed = append(needed, h)
		}
	}
	return [][]*resourceapi.ResourceClaim{needed}
}

func (a *asker) release(s *shape, set []*resourceapi.ResourceClaim) Cure {
	c := Cure{Nodes: []string{s.Node.Name}}
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

// now reports whether the node can allocate the claims beside all others.
func (a *asker) now(ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim) (Cure, bool) {
	result, _ := a.allocate(ctx, s.Node, nil, claims)
	return Cure{}, result == ask.Yes
}

// later reports whether the node can allocate the claims once other claims have ended.
func (a *asker) later(ctx context.Context, s *shape, claims []*resourceapi.ResourceClaim) (Cure, bool) {
	if a.onEmpty(ctx, s, claims) != ask.Yes {
		return Cure{}, false
	}
	sets := a.smallest(ctx, s, claims)
	if len(sets) == 0 {
		return Cure{}, false
	}
	return a.release(s, sets[0]), true
}

// relax tries each change on the shapes until one can allocate the changed claims.
func (a *asker) relax(ctx context.Context, shapes []*shape, changes []relaxation,
	try func(context.Context, *shape, []*resourceapi.ResourceClaim) (Cure, bool)) []Cure {
	found := make([]*Cure, len(changes))
	ask.Each(len(changes), func(i int) {
		for _, s := range shapes {
			if ctx.Err() != nil {
				return
			}
			c, ok := try(ctx, s, changes[i].claims)
			if !ok {
				continue
			}
			if found[i] == nil {
				c.Claims, c.Outside = changes[i].claims, changes[i].outside
				if c.Text == "" {
					c.Text = changes[i].text
				} else {
					c.Text = changes[i].text + ", and " + c.Text
				}
				found[i] = &c
			}
			if len(c.Release) > 0 {
				found[i].Nodes = []string{s.Node.Name}
				return
			}
			found[i].Nodes = append(found[i].Nodes, s.Names...)
		}
	})
	var out []Cure
	used := map[string]bool{}
	for i, c := range found {
		if c == nil || used[changes[i].group] {
			continue
		}
		used[changes[i].group] = changes[i].group != ""
		if changes[i].amount != nil && len(c.Release) == 0 {
			a.refine(ctx, shapes, *changes[i].amount, c)
		}
		slices.Sort(c.Nodes)
		out = append(out, *c)
	}
	return out
}

// refine raises the amount of a cure to the largest whole number of Gi, Mi or units that helps.
func (a *asker) refine(ctx context.Context, shapes []*shape, found amount, c *Cure) {
	unit := int64(1)
	for _, larger := range []int64{1 << 20, 1 << 30} {
		if found.amount.Value() >= larger {
			unit = larger
		}
	}
	shapes = slices.DeleteFunc(slices.Clone(shapes),
		func(s *shape) bool { return !slices.Contains(c.Nodes, s.Names[0]) })
	low, high := found.amount.Value()/unit, (found.above-1)/unit
	for low < high {
		to := found
		middle := (low + high + 1) / 2
		to.amount = *resource.NewQuantity(middle*unit, resource.BinarySI)
		change := less(c.Claims, to)
		var nodes []string
		for _, s := range shapes {
			if _, ok := a.now(ctx, s, change.claims); ok {
				nodes = append(nodes, s.Names...)
			}
		}
		if len(nodes) == 0 {
			high = middle - 1
			continue
		}
		low, c.Text, c.Nodes, c.Claims = middle, change.text, nodes, change.claims
	}
}
