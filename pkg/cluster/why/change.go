// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
)

// relaxation is a change of the claims, and a cure if it helps.
type relaxation struct {
	Cure
	// group holds relaxations of which the first that helps is enough.
	group string
	// less is set if less of a capacity is asked for.
	less *amount
}

// amount is a capacity of a request, with the value to ask for. above is a larger value, which does not help if another
// relaxation of the group has it.
type amount struct {
	claim, request int
	name           resourceapi.QualifiedName
	asked, value   resource.Quantity
	above          int64
}

// less returns the relaxation to an amount.
func less(claims []*resourceapi.ResourceClaim, to amount) relaxation {
	q := claims[to.claim].Spec.Devices.Requests[to.request]
	text := fmt.Sprintf("request %s: ask for %s of %s instead of %s", q.Name, to.value.String(), to.name,
		to.asked.String())
	out := relaxed(claims, to.claim, fmt.Sprintf("capacity %d %d %s", to.claim, to.request, to.name), text,
		func(d *resourceapi.DeviceClaim) { d.Requests[to.request].Exactly.Capacity.Requests[to.name] = to.value })
	out.less = &to
	return out
}

// relaxed returns a change of one of the claims.
func relaxed(
	claims []*resourceapi.ResourceClaim, claim int, group, text string, change func(*resourceapi.DeviceClaim),
) relaxation {
	changed := copies(claims)
	change(&changed[claim].Spec.Devices)
	return relaxation{Cure: Cure{Text: text, Of: OfClaim, Claims: changed}, group: group}
}

// corrections returns the claims with misspelled names of attributes corrected, a selector at a time.
func (a *asker) corrections(view *admission.ClusterView, claims []*resourceapi.ResourceClaim) (out []relaxation) {
	for i, c := range claims {
		for j, q := range c.Spec.Devices.Requests {
			if q.Exactly == nil {
				continue
			}
			for k, s := range q.Exactly.Selectors {
				if corrected, text := view.Correct(s.CEL.Expression); text != "" {
					change := func(d *resourceapi.DeviceClaim) {
						d.Requests[j].Exactly.Selectors[k].CEL.Expression = corrected
					}
					text = fmt.Sprintf("request %s: %s", q.Name, text)
					out = append(out, relaxed(claims, i, "selector", text, change))
				}
			}
		}
	}
	return out
}

// relaxations returns the changes to try: a taint tolerated, a selector or constraint dropped, a lower count, less of a
// capacity, another class.
func (a *asker) relaxations(shapes []*shape, claims []*resourceapi.ResourceClaim) (out []relaxation) {
	for _, t := range taintsOf(shapes) {
		out = append(out, relaxation{
			Cure: Cure{Text: a.taintCure(t), Of: OfGPU, Claims: withTolerations(claims, &t), Outside: true},
		})
	}
	for i, c := range claims {
		for j, q := range c.Spec.Devices.Requests {
			if q.Exactly == nil {
				continue
			}
			change := func(group, text string, f func(*resourceapi.ExactDeviceRequest)) {
				out = append(out, relaxed(claims, i, group, "request "+q.Name+": "+text,
					func(d *resourceapi.DeviceClaim) { f(d.Requests[j].Exactly) }))
			}
			asked := q.Exactly
			for n := asked.Count - 1; n >= 1 && n >= asked.Count-16; n-- {
				change(fmt.Sprintf("count %d %d", i, j), fmt.Sprintf("ask for %d instead of %d", n, asked.Count),
					func(q *resourceapi.ExactDeviceRequest) { q.Count = n })
			}
			for _, to := range amounts(i, j, asked.Capacity) {
				out = append(out, less(claims, to))
			}
			for k, s := range asked.Selectors {
				change("", "drop the selector "+ask.Brief(s.CEL.Expression)+" (for a device that it rejects)",
					func(q *resourceapi.ExactDeviceRequest) { q.Selectors = slices.Delete(q.Selectors, k, k+1) })
			}
			if asked.Count > 1 {
				continue // Partitions instead of several GPUs are a large change.
			}
			whole, _ := a.kind(a.Class(asked.DeviceClassName))
			for _, name := range a.otherClasses(asked.DeviceClassName) {
				cost := "another partition"
				if whole == gpu.KindGPU {
					cost = "a partition, not a whole GPU"
				}
				change(fmt.Sprintf("class %d %d", i, j),
					fmt.Sprintf("use the class %s instead of %s (%s)", name, asked.DeviceClassName, cost),
					func(q *resourceapi.ExactDeviceRequest) { q.DeviceClassName = name })
			}
		}
		for k, constraint := range c.Spec.Devices.Constraints {
			if name := cmp.Or(constraint.MatchAttribute, constraint.DistinctAttribute); name != nil {
				text := fmt.Sprintf("claim %s: drop the constraint on %s (for devices that it rejects)", c.Name, *name)
				out = append(out, relaxed(claims, i, "", text, func(d *resourceapi.DeviceClaim) {
					d.Constraints = slices.Delete(d.Constraints, k, k+1)
				}))
			}
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
	const maxTaints = 8
	names := slices.Sorted(maps.Keys(found))
	for _, name := range names[:min(len(names), maxTaints)] {
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

// amounts returns smaller amounts of each capacity of a request, the largest first: seven eighths to one eighth, then
// halves of it.
func amounts(claim, request int, all *resourceapi.CapacityRequirements) (out []amount) {
	if all == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all.Requests)) {
		q := all.Requests[name]
		asked, ok := q.AsInt64()
		if !ok || asked < 8 {
			continue
		}
		above := asked
		for _, part := range []int64{112, 96, 80, 64, 48, 32, 16, 8, 4, 2, 1} { // of 128
			n := int64(float64(asked) * float64(part) / 128)
			if mib := int64(1 << 20); n > mib {
				n -= n % mib
			}
			if n > 0 {
				out = append(out, amount{
					claim:   claim,
					request: request,
					name:    name,
					asked:   q,
					value:   *resource.NewQuantity(n, resource.BinarySI),
					above:   above,
				})
				above = n
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
	const maxClasses = 24
	return out[:min(len(out), maxClasses)]
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
