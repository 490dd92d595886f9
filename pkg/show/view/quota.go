// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/budget"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
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
		cost, ok := budget.Charge{}, false
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

// QuotaEntry returns the entry of a ResourceQuota that counts the devices of a class.
func QuotaEntry(class string) corev1.ResourceName {
	return corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
}

// QuotaClasses returns the classes that hand out GPUs of the driver, or parts of them, by name. Classes of monitor
// devices do not.
func QuotaClasses(o Objects, classes []resourceapi.DeviceClass) (out []resourceapi.DeviceClass) {
	c := newClassifier(o, classes)
	for _, class := range classes {
		monitors := slices.ContainsFunc(selector.Expressions(class.Spec.Selectors), func(e string) bool {
			return c.Read(e).Type(o.Driver) == string(gpu.KindMonitor)
		})
		if !monitors && c.selects(class.Spec.Selectors) {
			out = append(out, class)
		}
	}
	slices.SortFunc(out, func(a, b resourceapi.DeviceClass) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// QuotaHole is a namespace whose ResourceQuotas limit some of the driver's classes, and leave others unlimited.
type QuotaHole struct {
	Namespace string
	// Limited and Open are names of classes.
	Limited, Open []string
}

// QuotaHoles returns the namespaces whose ResourceQuotas have holes, but for those with a budget.
func QuotaHoles(
	quotas []corev1.ResourceQuota, classes []resourceapi.DeviceClass, budgeted sets.Set[string],
) (out []QuotaHole) {
	hard := map[string]sets.Set[corev1.ResourceName]{}
	for _, q := range quotas {
		if hard[q.Namespace] == nil {
			hard[q.Namespace] = sets.New[corev1.ResourceName]()
		}
		for name, n := range q.Spec.Hard {
			if name != claimCount || n.IsZero() { // A number of claims limits no devices, unless it is 0.
				hard[q.Namespace].Insert(name)
			}
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(hard)) {
		has := hard[namespace]
		h := QuotaHole{Namespace: namespace}
		for _, class := range classes {
			if limits(has, class) {
				h.Limited = append(h.Limited, class.Name)
			} else {
				h.Open = append(h.Open, class.Name)
			}
		}
		if len(h.Limited) > 0 && len(h.Open) > 0 && !has.Has(claimCount) && !budgeted.Has(namespace) {
			out = append(out, h)
		}
	}
	return out
}

const claimCount corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

// limits reports whether a quota counts the claims of a class: Kubernetes counts them under the class and under its
// extended resource.
func limits(hard sets.Set[corev1.ResourceName], class resourceapi.DeviceClass) bool {
	if hard.Has(QuotaEntry(class.Name)) {
		return true
	}
	name := class.Spec.ExtendedResourceName
	return name != nil && *name != "" && hard.Has(corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*name))
}

// quotas warns of ResourceQuotas with holes.
func (d Diagnosis) quotas(out *findings) {
	budgeted := sets.New[string]()
	for _, b := range d.Budgets {
		budgeted.Insert(b.Namespace)
	}
	for _, h := range QuotaHoles(d.Quotas, QuotaClasses(d.Objects, d.Classes), budgeted) {
		const shown = 3
		open := h.Open
		if len(open) > shown {
			open = append(slices.Clone(open[:shown]), "…")
		}
		out.add(Warning, "namespace "+h.Namespace, "its ResourceQuota limits %s, and other classes of the same GPUs "+
			"not (%d): %s. Give it a GPU budget, or add the entries of kubectl gpu quota -n %s --resource-quota",
			strings.Join(h.Limited, ", "), len(h.Open), strings.Join(open, ", "), h.Namespace)
	}
}
