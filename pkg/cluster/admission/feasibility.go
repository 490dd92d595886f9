// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/gpu"
)

// Limits of a review. The allocator takes long if it must try many combinations, so its processor time is limited. On a
// busy machine that time takes longer, and the API server waits for two seconds.
const (
	searchFor = 25 * time.Millisecond
	reviewFor = time.Second
)

// limited returns a context that ends by the limits of a review. The processor time is at least the given one.
func (v *ClusterView) limited(ctx context.Context, processorTime time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeout(ctx, max(v.SearchFor, v.reviewFor))
	ctx, cancel := ask.WithProcessorTime(ctx, max(v.SearchFor, processorTime))
	return ctx, func() {
		cancel()
		stop()
	}
}

// unsatisfiable tries the claim with the scheduler's allocator on an empty node of each shape. It returns a text that
// names the impossible request, or "" if a node satisfies the claim or the claim depends on unknown devices. After the
// context's end, sure is false.
func (v *ClusterView) unsatisfiable(
	ctx context.Context, spec resourceapi.ResourceClaimSpec, requests []request,
) (text string, sure bool) {
	if len(v.pools) == 0 || len(requests) == 0 {
		return "", true
	}
	skip := map[string]bool{}
	for _, q := range requests {
		parent := cmp.Or(q.Parent, q.Name)
		switch {
		case q.Class == nil || q.driver == "":
			return "", true
		case v.others(q):
			skip[parent] = true
		case v.identified(q.Expressions()):
			return "", true
		}
	}
	ours := only(spec.Devices, func(name string) bool { return !skip[name] })
	if len(ours.Requests) == 0 {
		return "", true
	}
	key := question(ours, requests)
	if known, ok := v.feasible.Get(key); ok {
		return known.(string), true
	}
	text = v.search(ctx, ours, requests)
	if ctx.Err() != nil { // Even a negative result may not name the right cause.
		return "", false
	}
	v.feasible.Add(key, text)
	return text, true
}

// question is equal for claims with equal requests and classes, because many claims are alike.
func question(devices resourceapi.DeviceClaim, requests []request) string {
	key, _ := json.Marshal(devices) // A decoded object always encodes.
	for _, q := range requests {
		key = fmt.Appendf(key, " %s %s", q.DeviceClassName, q.Class.ResourceVersion)
	}
	sum := sha256.Sum256(key) // A claim can be large.
	return string(sum[:])
}

// search tries the requests. After a timeout the text counts for nothing.
func (v *ClusterView) search(ctx context.Context, ours resourceapi.DeviceClaim, requests []request) (text string) {
	// The allocator is slow if there are too few devices, because it tries them in every order.
	grows := false
	for _, q := range requests {
		more := v.grows(q.driver, q.kind)
		grows = grows || more
		if !v.others(q) && !q.Alternative() && (more && v.elsewhere(q.Expressions()) || !more && v.tooFew(ctx, q)) {
			return v.obstacle(ctx, q.Name, requests)
		}
	}
	if grows {
		return ""
	}
	if ok, problem := v.anywhere(ctx, ours); ok || problem != "" {
		return problem
	}
	for _, r := range ours.Requests {
		one := only(ours, func(name string) bool { return name == r.Name })
		if ok, _ := v.anywhere(ctx, one); !ok {
			return v.obstacle(ctx, r.Name, requests)
		}
	}
	return "no node of the cluster as it is now could satisfy all requests of the claim together, even if it were " +
		"empty" + v.room(ctx, ours)
}

// room says for how many devices of a request the node with the most has room.
func (v *ClusterView) room(ctx context.Context, ours resourceapi.DeviceClaim) string {
	var most *ask.Short
	for _, n := range v.empty {
		short, err := v.TooFew(ctx, n, nil, v.Requests(ours))
		if err != nil || short == nil {
			return ""
		}
		if most == nil || short.Most > most.Most {
			most = short
		}
	}
	if most == nil {
		return ""
	}
	return ": the largest " + most.String()
}

// grows reports whether nodes can publish more devices of a driver and kind once a claim asks for them, for example a
// profile's partitions on other GPUs. Both can be open.
func (v *ClusterView) grows(driver string, kind gpu.Kind) bool {
	return v.OnDemand && (driver == v.driver || driver == "") && (kind == gpu.KindMIG || kind == "")
}

// elsewhere reports whether selectors need a profile or model that no device of the cluster has. Nodes that publish
// less than they can have a device of each.
func (v *ClusterView) elsewhere(expressions []string) bool {
	for _, e := range expressions {
		for name, values := range v.Read(e).Required {
			if has := v.values[name]; len(has) > 0 && !has.HasAny(values...) {
				return true
			}
		}
	}
	return false
}

// growing warns of requests that wait until nodes publish more devices.
func (v *ClusterView) growing(ctx context.Context, r *result, requests []request) {
	for _, q := range requests {
		if what := map[gpu.Kind]string{gpu.KindGroup: "such groups",
			gpu.KindMonitor: "monitor devices"}[q.kind]; what != "" && !q.Alternative() && v.waits(ctx, q) &&
			ctx.Err() == nil {
			r.warn("request %s: nodes publish no %s now, and some while the claim waits, "+
				"unless their settings exclude them (chart value publish)", q.Name, what)
		}
		if len(v.pools) > 0 && q.driver != "" && v.grows(q.driver, q.kind) && !q.Alternative() && v.tooFew(ctx, q) {
			r.warn("request %s: nodes publish fewer of these partitions now, and more while the claim waits "+
				"(chart value publish)", q.Name)
		}
	}
}

// waits reports whether only devices match that nodes do not publish yet.
func (v *ClusterView) waits(ctx context.Context, q request) (waits bool) {
	for _, p := range v.pools {
		for _, s := range p.Slices {
			for i := range s.Shape.Spec.Devices {
				if ok, err := v.satisfies(ctx, q.Expressions(), ask.Published(s.Shape, i)); err != nil || !ok {
					continue
				}
				if waits = s.Possible; !waits {
					return false
				}
			}
		}
	}
	return waits
}

// obstacle says which part of a request no node can satisfy.
func (v *ClusterView) obstacle(ctx context.Context, name string, requests []request) string {
	text := "request " + name + ": "
	i := slices.IndexFunc(requests, func(q request) bool { return q.Name == name })
	if i < 0 { // It has alternatives.
		return text + "no node of the cluster as it is now could satisfy it, even if it were empty"
	}
	q, most, largest := requests[i], int64(0), map[resourceapi.QualifiedName]resource.Quantity{}
	for _, p := range v.pools {
		n := int64(0)
		for c := range candidates(p) {
			if ok, err := v.satisfies(ctx, q.Expressions(), c); !ok || err != nil {
				continue
			}
			n++
			for id, capacity := range c.Device.Capacity {
				if best := largest[id]; capacity.Value.Cmp(best) > 0 {
					largest[id] = capacity.Value
				}
			}
		}
		most = max(most, n)
	}
	for _, id := range slices.Sorted(maps.Keys(q.amounts())) {
		if asked, has := q.amounts()[id], largest[id]; most > 0 && asked.Cmp(has) > 0 {
			return fmt.Sprintf("%sit asks %s of %s; the largest %s has %s", text, asked.String(), id, nouns[q.kind],
				has.String())
		}
	}
	switch {
	case most == 0:
		text += "no device of the cluster as it is now matches its class and selectors"
		switch q.kind {
		case gpu.KindMIG:
			text += v.profileHint()
		case gpu.KindGroup:
			text += ". Nodes publish groups unless their settings switch them off (chart value publish)"
		}
		return text
	case q.Devices() > most:
		return fmt.Sprintf("%sit asks for %d devices; no node of the cluster as it is now has more than %d that match",
			text, q.Devices(), most)
	}
	return text + "no node of the cluster as it is now could satisfy it, even if it were empty"
}

var nouns = map[gpu.Kind]string{
	"":              "device",
	gpu.KindGPU:     "GPU",
	gpu.KindMIG:     "partition",
	gpu.KindGroup:   "group",
	gpu.KindMonitor: "device",
}

// tooFew reports whether every node has too few devices for the request.
func (v *ClusterView) tooFew(ctx context.Context, q request) bool {
	if q.Devices() == 0 { // All devices are at least one.
		q.AllocationMode, q.Count = resourceapi.DeviceAllocationModeExactCount, 1
	}
	for _, n := range v.empty {
		short, err := v.TooFew(ctx, n, nil, []ask.Request{q.Request})
		if short == nil || err != nil || ctx.Err() != nil {
			return false
		}
	}
	return true
}

// GiveUp begins the warning of a claim with a selector that fails.
const GiveUp = "the scheduler would give up: "

// anywhere reports whether an empty node of any shape satisfies the requests. problem is an error that ends the
// scheduler's attempt.
func (v *ClusterView) anywhere(ctx context.Context, devices resourceapi.DeviceClaim) (ok bool, problem string) {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "review", Namespace: "review", UID: "review"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: devices},
	}
	for _, n := range v.empty {
		switch result, text := v.Allocate(ctx, n, nil, []*resourceapi.ResourceClaim{claim}); result {
		case ask.Yes, ask.Unknown:
			return true, ""
		case ask.Fatal:
			problem = GiveUp + strings.TrimPrefix(ask.Failure(text), "claim review/review: ")
		}
	}
	return false, problem
}

// only keeps some requests, and their constraints.
func only(devices resourceapi.DeviceClaim, keep func(request string) bool) resourceapi.DeviceClaim {
	var out resourceapi.DeviceClaim
	for _, r := range devices.Requests {
		if keep(r.Name) {
			out.Requests = append(out.Requests, ask.Defaulted(r))
		}
	}
	for _, c := range devices.Constraints {
		named := len(c.Requests) > 0
		c.Requests = slices.DeleteFunc(slices.Clone(c.Requests), func(name string) bool {
			return !keep(strings.SplitN(name, "/", 2)[0])
		})
		if !named || len(c.Requests) > 0 {
			out.Constraints = append(out.Constraints, c)
		}
	}
	return out
}
