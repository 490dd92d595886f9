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
