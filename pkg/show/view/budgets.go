// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nobudgets

package view

import (
	"cmp"
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/budget"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/gpu"
)

// Quota is the use of a namespace under one limit, or without a limit.
type Quota struct {
	Namespace string `json:"namespace"`
	// Limit is `gpus` or `memory`, in bytes. Model is empty for the limit of all models.
	Limit string  `json:"limit"`
	Model string  `json:"model,omitempty"`
	Used  float64 `json:"used"`
	// Hard is absent without a budget.
	Hard *float64 `json:"hard,omitempty"`
}

// Quotas returns the limits of budgets, and the use of the namespaces without one, sorted by namespace.
func Quotas(
	ctx context.Context, o Objects, classes []resourceapi.DeviceClass, budgets []v1alpha1.GPUBudget,
) (out []Quota) {
	limited := sets.New[string]()
	for i := range budgets {
		limited.Insert(budgets[i].Namespace)
		for _, r := range budget.Ratios(&budgets[i]) {
			out = append(out, Quota{budgets[i].Namespace, r.Limit, r.Model, r.Used, &r.Hard})
		}
	}
	byNode := nodesOf(o.Slices)
	var pools []pool.Pool
	for _, node := range byNode {
		pools = append(pools, pool.Of(node))
	}
	samples := pool.NewSamples()
	samples.LearnAll(byNode)
	counter := budget.NewCounter(o.Driver, ask.Of(pointers(classes), ""), distinct(pools, samples))
	in := budget.PoolsOf(pools)
	used := map[string]budget.Charge{}
	for i := range o.Claims {
		claim := &o.Claims[i]
		if limited.Has(claim.Namespace) || o.Failed(read.ResourceSlices) {
			continue // The cost of a device is in its slice.
		}
		var cost budget.Charge
		ok := false
		if claim.Status.Allocation != nil {
			cost, ok = counter.Allocated(claim.Status.Allocation, in)
		}
		if !ok {
			cost, _ = counter.Largest(ctx, claim.Spec.Devices) // A refused claim costs nothing.
		}
		if !cost.Zero() {
			used[claim.Namespace] = used[claim.Namespace].Plus(cost)
		}
	}
	for namespace, cost := range used {
		out = append(out, Quota{Namespace: namespace, Limit: "gpus", Used: float64(cost.MilliGPUs) / 1000},
			Quota{Namespace: namespace, Limit: "memory", Used: float64(cost.Bytes)})
	}
	slices.SortStableFunc(out, func(a, b Quota) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Model, b.Model),
			cmp.Compare(a.Limit, b.Limit))
	})
	return out
}

// distinct returns the pools that differ, with the devices that nodes publish once an object asks for them.
func distinct(pools []pool.Pool, samples *pool.Samples) (out []pool.Pool) {
	for p := range pool.Distinct(pools) {
		out = append(out, samples.Add(p).With(gpu.KindGroup))
	}
	return out
}

func nodesOf(all []*pool.Slice) map[string][]*pool.Slice {
	out := map[string][]*pool.Slice{}
	for _, s := range all {
		out[s.Node] = append(out[s.Node], s)
	}
	return out
}
