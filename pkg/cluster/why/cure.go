// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
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

// relaxation is one change of the claims.
type relaxation struct {
	text   string
	claims []*resourceapi.ResourceClaim
	// group holds relaxations of which the first that helps is enough.
	group string
	// amount is set if less of a capacity is asked for.
	amount *amount
	// outside means that a thing beside the claims can change instead, such as a cordon.
	outside bool
}

// amount is a capacity of a request, and the amount to ask for. above is a larger amount, which does not help if
// another relaxation of the group has it.
type amount struct {
	claim, request int
	lesser
	above int64
}

// less returns the relaxation to an amount.
func less(claims []*resourceapi.ResourceClaim, to amount) relaxation {
	changed := copies(claims)
	q := &changed[to.claim].Spec.Devices.Requests[to.request]
	q.Exactly.Capacity.Requests[to.name] = to.amount
	return relaxation{
		text: fmt.Sprintf("request %s: ask for %s of %s instead of %s", q.Name, to.amount.String(), to.name,
			to.asked.String()),
		claims: changed,
		group:  fmt.Sprintf("capacity %d %d %s", to.claim, to.request, to.name),
		amount: &to,
	}
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

// corrections returns the claims with misspelled names of attributes corrected, a selector at a time.
func (a *asker) corrections(view *admission.ClusterView, claims []*resourceapi.ResourceClaim) (out []relaxation) {
	for i, c := range claims {
		for j, q := range c.Spec.Devices.Requests {
			if q.Exactly == nil {
				continue
			}
			for k, s := range q.Exactly.Selectors {
				corrected, change := view.Correct(s.CEL.Expression)
				if change == "" {
					continue
				}
				changed := copies(claims)
				changed[i].Spec.Devices.Requests[j].Exactly.Selectors[k].CEL.Expression = corrected
				out = append(out, relaxation{text: fmt.Sprintf("request %s: %s", q.Name, change), claims: changed,
					group: "selector"})
			}
		}
	}
	return out
}

// relaxations returns the changes to try: a taint tolerated, a selector or constraint dropped, a lower count, less of a
// capacity, another class.
func (a *asker) relaxations(shapes []*shape, claims []*resourceapi.ResourceClaim) (out []relaxation) {
	for _, t := range taintsOf(shapes) {
		out = append(out, relaxation{text: a.taintCure(t), claims: withTolerations(claims, &t), outside: true})
	}
	change := func(claim, request int, group, text string, f func(q *resourceapi.ExactDeviceRequest)) {
		changed := copies(claims)
		f(changed[claim].Spec.Devices.Requests[request].Exactly)
		out = append(out, relaxation{text: text, claims: changed, group: group})
	}
	for i, c := range claims {
		for j, q := range c.Spec.Devices.Requests {
			if q.Exactly == nil {
				continue
			}
			where := "request " + q.Name
			for n := q.Exactly.Count - 1; n >= 1 && n >= q.Exactly.Count-16; n-- {
				change(i, j, fmt.Sprintf("count %d %d", i, j),
					fmt.Sprintf("%s: ask for %d instead of %d", where, n, q.Exactly.Count),
					func(q *resourceapi.ExactDeviceRequest) { q.Count = n })
			}
			above := map[resourceapi.QualifiedName]int64{}
			for _, lower := range capacities(q.Exactly.Capacity) {
				to := amount{i, j, lower, cmp.Or(above[lower.name], lower.asked.Value())}
				out = append(out, less(claims, to))
				above[lower.name] = lower.amount.Value()
			}
			for k, s := range q.Exactly.Selectors {
				change(i, j, "", fmt.Sprintf("%s: drop the selector %s", where, ask.Brief(s.CEL.Expression)),
					func(q *resourceapi.ExactDeviceRequest) { q.Selectors = slices.Delete(q.Selectors, k, k+1) })
			}
			if q.Exactly.Count > 1 {
				continue // Partitions instead of several GPUs are a large change.
			}
			for _, name := range a.otherClasses(q.Exactly.DeviceClassName) {
				change(i, j, fmt.Sprintf("class %d %d", i, j),
					fmt.Sprintf("%s: use the class %s instead of %s", where, name, q.Exactly.DeviceClassName),
					func(q *resourceapi.ExactDeviceRequest) { q.DeviceClassName = name })
			}
		}
		for k, constraint := range c.Spec.Devices.Constraints {
			name := cmp.Or(constraint.MatchAttribute, constraint.DistinctAttribute)
			if name == nil {
				continue
			}
			changed := copies(claims)
			changed[i].Spec.Devices.Constraints = slices.Delete(changed[i].Spec.Devices.Constraints, k, k+1)
			out = append(out, relaxation{text: fmt.Sprintf("claim %s: drop the constraint on %s", c.Name, *name),
				claims: changed})
		}
	}
	return out
}

func copies(claims []*resourceapi.ResourceClaim) (out []*resourceapi.ResourceClaim) {
	for _, c := range claims {
		out = append(out, c.DeepCopy())
	}
	return out
}

// withTolerations returns the claims with a toleration of the taint, or of all taints, in every request.
func withTolerations(claims []*resourceapi.ResourceClaim, t *resourceapi.DeviceTaint) []*resourceapi.ResourceClaim {
	toleration := resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists}
	if t != nil {
		toleration = resourceapi.DeviceToleration{
			Key:      t.Key,
			Operator: resourceapi.DeviceTolerationOpEqual,
			Value:    t.Value,
			Effect:   t.Effect,
		}
	}
	out := copies(claims)
	for _, c := range out {
		for i := range c.Spec.Devices.Requests {
			q := &c.Spec.Devices.Requests[i]
			if q.Exactly != nil {
				q.Exactly.Tolerations = append(q.Exactly.Tolerations, toleration)
			}
			for j := range q.FirstAvailable {
				q.FirstAvailable[j].Tolerations = append(q.FirstAvailable[j].Tolerations, toleration)
			}
		}
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

// taintsOf returns up to eight different taints of the shapes' devices.
func taintsOf(shapes []*shape) []resourceapi.DeviceTaint {
	found := map[string]resourceapi.DeviceTaint{}
	for _, s := range shapes {
		for _, slice := range s.Slices {
			for _, d := range slice.Spec.Devices {
				for _, t := range ask.Untolerated(d, nil) {
					found[ask.TaintText(t)] = resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: t.Effect}
				}
			}
		}
	}
	var out []resourceapi.DeviceTaint
	const most = 8
	names := slices.Sorted(maps.Keys(found))
	for _, name := range names[:min(len(names), most)] {
		out = append(out, found[name])
	}
	return out
}

// taintCure says how a taint goes. Tolerating it has the same effect for the scheduler.
func (a *asker) taintCure(t resourceapi.DeviceTaint) string {
	switch {
	case t.Key == wire.UnhealthyTaint && t.Value == string(resourceslices.NoDemand):
		return "the node must publish the devices again, which it does within a minute while the claim waits"
	case t.Key == wire.UnhealthyTaint:
		return fmt.Sprintf("the GPU with the taint %s must be repaired", ask.TaintText(t))
	case t.Key == wire.CordonTaint:
		return "the cordon of the GPU must end (kubectl gpu uncordon)"
	case t.Key == wire.ReservedTaint:
		return "the reservation must end, which it does within minutes"
	}
	return fmt.Sprintf("the taint %s must go, or each request must tolerate it", ask.TaintText(t))
}

// lesser is a smaller amount of a capacity.
type lesser struct {
	name          resourceapi.QualifiedName
	asked, amount resource.Quantity
}

// capacities returns smaller amounts of each requested capacity, the largest first: seven eighths to one eighth, then
// halves of it.
func capacities(all *resourceapi.CapacityRequirements) (out []lesser) {
	if all == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all.Requests)) {
		q := all.Requests[name]
		asked, ok := q.AsInt64()
		if !ok || asked < 8 {
			continue
		}
		for _, part := range []int64{112, 96, 80, 64, 48, 32, 16, 8, 4, 2, 1} { // of 128
			n := int64(float64(asked) * float64(part) / 128)
			if mib := int64(1 << 20); n > mib {
				n -= n % mib
			}
			if n > 0 {
				out = append(out, lesser{name, q, *resource.NewQuantity(n, resource.BinarySI)})
			}
		}
	}
	return out
}

// otherClasses returns the classes of this driver's partitions that a request for a GPU or a partition could name
// instead; the largest profile is first.
func (a *asker) otherClasses(name string) (out []string) {
	if kind, _ := a.kind(a.Class(name)); kind != gpu.KindGPU && kind != gpu.KindMIG {
		return nil
	}
	for _, other := range a.AllClasses() {
		if _, profile := a.kind(other); other.Name != name && profile {
			out = append(out, other.Name)
		}
	}
	slices.SortFunc(out, func(x, y string) int { return cmp.Compare(y, x) })
	const most = 24
	return out[:min(len(out), most)]
}

// kind returns the kind of this driver's devices that a class selects, or "", and whether it selects a MIG profile.
func (a *asker) kind(class *resourceapi.DeviceClass) (kind gpu.Kind, profile bool) {
	driver := ""
	if class == nil {
		return "", false
	}
	for _, e := range selector.Expressions(class.Spec.Selectors) {
		r := a.Read(e)
		driver, kind = cmp.Or(r.Driver, driver), cmp.Or(gpu.Kind(r.Type(a.Driver)), kind)
		profile = profile || len(r.Required[selector.Name{Domain: a.Driver, ID: "profile"}]) > 0
	}
	if driver != a.Driver {
		return "", false
	}
	return kind, profile
}
