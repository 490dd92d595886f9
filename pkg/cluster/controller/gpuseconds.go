// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/show/metrics"
)

// gpuSeconds adds up the seconds of whole GPUs that claims are allocated, by namespace and model. It follows events, so
// it also counts claims that end before the next scrape. It is safe for concurrent use.
type gpuSeconds struct {
	// weigh returns the GPUs of a claim by model; false while the slices of its node are missing.
	weigh func(*resourceapi.AllocationResult) (map[string]float64, bool)

	mu    sync.Mutex
	held  map[types.UID]*heldClaim
	total map[metrics.Tenant]float64
}

type heldClaim struct {
	namespace  string
	allocation *resourceapi.AllocationResult
	// weights is the number of GPUs by model, nil while it is unknown.
	weights map[string]float64
	// since is the time up to which the claim is charged.
	since time.Time
}

func newGPUSeconds(weigh func(*resourceapi.AllocationResult) (map[string]float64, bool)) *gpuSeconds {
	return &gpuSeconds{weigh: weigh, held: map[types.UID]*heldClaim{}, total: map[metrics.Tenant]float64{}}
}

// follow counts from the events of claims.
func (s *gpuSeconds) follow(claims cache.SharedIndexInformer) error {
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    s.see,
		UpdateFunc: func(_, now any) { s.see(now) },
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if claim, ok := o.(*resourceapi.ResourceClaim); ok {
				s.set(claim, nil)
			}
		},
	})
	return err
}

func (s *gpuSeconds) see(o any) {
	if claim, ok := o.(*resourceapi.ResourceClaim); ok {
		s.set(claim, claim.Status.Allocation)
	}
}

// set charges a claim up to now, and stores its allocation, or that it has none. With an unchanged allocation, the time in
// which its weights are unknown is charged later.
func (s *gpuSeconds) set(claim *resourceapi.ResourceClaim, a *resourceapi.AllocationResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	h := s.held[claim.UID]
	if h != nil {
		s.charge(h, now)
	}
	switch {
	case a == nil:
		delete(s.held, claim.UID)
	case h == nil || !equality.Semantic.DeepEqual(h.allocation, a):
		h = &heldClaim{namespace: claim.Namespace, allocation: a, since: now}
		s.held[claim.UID] = h
		s.charge(h, now)
	}
}

func (s *gpuSeconds) charge(h *heldClaim, now time.Time) {
	if h.weights == nil {
		weights, ok := s.weigh(h.allocation)
		if !ok {
			return
		}
		h.weights = weights
	}
	for model, gpus := range h.weights {
		s.total[metrics.Tenant{Namespace: h.namespace, Model: model}] += now.Sub(h.since).Seconds() * gpus
	}
	h.since = now
}

// read returns the sums up to now.
func (s *gpuSeconds) read() map[metrics.Tenant]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, h := range s.held {
		s.charge(h, now)
	}
	return maps.Clone(s.total)
}

// weigh returns the GPUs of an allocation by model. The shares of a device count at most as the device: one can have much
// memory, and another one much compute.
func (c *Controller) weigh(a *resourceapi.AllocationResult) (map[string]float64, bool) {
	out, pools := map[string]float64{}, map[string]pool.Pool{}
	taken := map[[2]string]float64{} // By pool and device.
	for r := range pool.Results(a, c.driver) {
		node := resourceslices.NodeOf(r.Pool)
		if _, known := pools[node]; !known {
			pools[node] = pool.Of(slicesOf(c.slices.GetIndexer(), node))
		}
		model, gpus, ok := pools[node].Weight(r)
		if !ok {
			return nil, false
		}
		if gpus > 0 {
			whole, device := r, [2]string{r.Pool, r.Device}
			whole.ConsumedCapacity = nil
			_, most, _ := pools[node].Weight(whole)
			gpus = min(gpus, most-taken[device])
			taken[device] += gpus
			out[model] += gpus
		}
	}
	return out, true
}
