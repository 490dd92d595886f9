// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/demand"
	"gpu-dra-driver/pkg/cluster/demand/objects"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
)

// unscheduled reports whether the scheduler could not place the pod.
func unscheduled(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// waiting returns what the pods ask for that the scheduler could not place, each thing once: their resources, and their
// claims without devices.
func (k *demandKeeper) waiting() (out []objects.Ask) {
	seen := map[objects.Ask]bool{}
	add := func(object any) {
		for _, a := range objects.AsksOf(object, k.driver) {
			if !seen[a] {
				seen[a] = true
				out = append(out, a)
			}
		}
	}
	for _, o := range k.pods.GetIndexer().List() {
		pod, ok := o.(*corev1.Pod)
		if !ok || !unscheduled(pod) {
			continue
		}
		add(pod)
		for _, name := range claimNames(pod) {
			found, exists, _ := k.claims.GetIndexer().GetByKey(cache.NewObjectName(pod.Namespace, name).String())
			if claim, ok := found.(*resourceapi.ResourceClaim); exists && ok && claim.Status.Allocation == nil {
				add(claim)
			}
		}
	}
	return out
}

// claimNames returns the claims of a pod that exist.
func claimNames(pod *corev1.Pod) (out []string) {
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			out = append(out, *c.ResourceClaimName)
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			out = append(out, *s.ResourceClaimName)
		}
	}
	return out
}

// serves has the profiles that a node can publish, demand.Groups and demand.Shares, and the PCI addresses of its whole GPUs. open means that it
// has other GPUs too.
type serves struct {
	gpus, what map[string]bool
	open       bool
}

func servesOf(p pool.Pool) serves {
	out := serves{gpus: map[string]bool{}, what: map[string]bool{}}
	var others []string
	for d, kind := range p.Devices() {
		if kind.Type != gpu.KindMonitor && ptr.Deref(d.AllowMultipleAllocations, false) {
			out.what[demand.Shares] = true
		}
		named, err := gpu.ParseName(d.Name)
		switch {
		case err != nil:
		case kind.Type == gpu.KindGPU:
			out.gpus[named.PCIAddress] = true
		case kind.Type == gpu.KindGroup:
			out.what[demand.Groups] = true
		case kind.Type == gpu.KindMIG:
			out.what[kind.Profile] = true
			others = append(others, named.PCIAddress)
		default:
			others = append(others, named.PCIAddress)
		}
	}
	out.open = slices.ContainsFunc(others, func(address string) bool { return !out.gpus[address] })
	return out
}

// serving returns the serving nodes of each profile and of groups that nodes publish now, and the delay until the next choice
// if nothing changes; 0: none. published are the ones of the last ConfigMap and the ones asked for now. All nodes publish the
// ones in all, so these have no serving nodes.
func (k *demandKeeper) serving(last map[string][]string, published map[string]bool, all, waiting []string, now time.Time) (
	out map[string][]string, again time.Duration,
) {
	out = map[string][]string{}
	k.servers.Keep(published)
	cut := map[string]bool{}
	for _, nodes := range last {
		for _, node := range nodes {
			cut[node] = true
		}
	}
	alike, abilities, nodes := map[[32]*pool.Shape]serves{}, map[string]serves{}, map[string]demand.Candidate{}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.nodes.possible() {
		shape, ok := p.Shape()
		of, known := alike[shape]
		if !known || !ok {
			of = servesOf(p)
			alike[shape] = of
		}
		full, partly := k.holdings.Of(p.Node).Count(of.gpus)
		abilities[p.Node], nodes[p.Node] = of, demand.Candidate{Node: p.Node, GPUs: len(of.gpus), Full: full, Partly: partly, Open: of.open}
	}
	for _, what := range slices.Sorted(maps.Keys(published)) {
		if what == demand.Monitors || slices.Contains(all, what) {
			continue
		}
		var candidates []demand.Candidate
		for name, c := range nodes {
			if abilities[name].what[what] {
				c.Cut = cut[name]
				candidates = append(candidates, c)
			}
		}
		waits := slices.Contains(waiting, what)
		if waits {
			again = demand.Grow
		}
		out[what] = k.servers.Choose(last[what], what, candidates, k.holdings.Holders(what), waits, now)
		for _, name := range out[what] {
			cut[name] = true
		}
	}
	return out, again
}
