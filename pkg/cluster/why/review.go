// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

// possible returns the pool of the driver on a node, with the devices that the node could publish. It has no slices if
// the node publishes all of them.
func (a *asker) possible(s *shape) pool.Pool {
	published := s.published()
	p := a.samples.Add(published)
	if !p.OnDemand() && sameDevices(p, published) {
		return pool.Pool{}
	}
	return p.With(gpu.KindGroup, gpu.KindMonitor)
}

// view returns the view of the admission webhook, of the shapes' devices.
func (a *asker) view(shapes []*shape) *admission.ClusterView {
	seen := sets.New[uint64]()
	var pools []pool.Pool
	onDemand := false
	for _, s := range shapes {
		const maxPools = 20
		if seen.Has(s.Bare) || len(pools) == maxPools {
			continue
		}
		seen.Insert(s.Bare)
		p := s.published()
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

// denied returns the errors for which the webhook denies the claims of a subject.
func (a *asker) denied(ctx context.Context, view *admission.ClusterView, w wanted) (out []string) {
	for _, c := range w.waiting {
		errs, _ := view.Explain(ctx, c.Spec)
		out = append(out, errs...)
	}
	return out
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
