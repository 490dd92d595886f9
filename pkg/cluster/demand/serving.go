// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/bounded"
	"gpu-dra-driver/pkg/cluster/demand/objects"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/demand"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// podKind are pods that wait, ask for the same, and may run on the same nodes.
type podKind struct {
	pod *corev1.Pod
	// allocated are its claims that have devices already.
	allocated []*resourceapi.ResourceClaim
	asks      []objects.Ask
	// tried means that the scheduler found no node for one of them.
	tried bool
	// devices is the number of devices that each of them asks for.
	devices int
	// key is equal for pods of one kind.
	key string
}

// manyKinds is the number of kinds of pods whose nodes are found, and manyNodes limits the nodes that are looked at for
// them. The others wait until more nodes serve.
const manyKinds, manyNodes = 50, 50_000

// podKinds returns the kinds of the pods that wait for claims without devices, or for resources. Those that the
// scheduler could not place are first.
func (k *Keeper) podKinds(classes selector.Resources) []*podKind {
	all := map[string]*podKind{}
	for _, pod := range read.All[*corev1.Pod](k.cluster.Pods.GetIndexer()) {
		if !waiting.Waits(pod) {
			continue
		}
		one := &podKind{pod: pod, tried: waiting.SaidOf(pod).Tried}
		if waiting.ExtendedClaim(pod, k.cluster) == nil {
			one.asks, one.devices = objects.AsksOf(pod, k.Driver), devicesOf(waiting.Requests(pod, classes))
		}
		for _, claim := range waiting.Made(pod, k.cluster) {
			switch {
			case claim.DeletionTimestamp != nil: // The pod waits for another one.
			case claim.Status.Allocation != nil:
				one.allocated = append(one.allocated, claim)
			default:
				one.asks = append(one.asks, objects.AsksOf(claim, k.Driver)...)
				one.devices += devicesOf(claim.Spec.Devices.Requests)
			}
		}
		if len(one.asks) == 0 {
			continue
		}
		one.key = fmt.Sprintf("%v %d %d", one.asks, one.devices, waiting.NodesKey(pod))
		for _, c := range one.allocated {
			one.key += " " + string(c.UID)
		}
		if known := all[one.key]; known != nil {
			one.tried = one.tried || known.tried
		}
		all[one.key] = one
	}
	rank := func(one *podKind) int {
		if one.tried {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *podKind) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a.key, b.key))
	})
}

// devicesOf returns the number of devices that requests ask for, of alternatives all.
func devicesOf(requests []resourceapi.DeviceRequest) (n int) {
	for r := range selector.Requests(requests) {
		n += int(min(max(r.Count, 1), resourceapi.AllocationResultsMaxSize))
	}
	return n
}

// waiting returns the pods without a node, by what they wait for.
func (k *Keeper) waiting(ctx context.Context, c objects.Cluster) map[string]demand.Waiting {
	out := map[string]demand.Waiting{}
	pools, classes := k.cluster.Possible(), selector.ResourcesOf(c.Classes)
	most := min(manyKinds, max(manyNodes/max(len(pools), 1), 1))
	for i, one := range k.podKinds(classes) {
		var admitted map[string]bool
		if i < most {
			admitted = k.admits(one, classes, pools)
		}
		for _, a := range one.asks {
			c.Asked = []objects.Ask{a}
			for _, what := range c.Demand(k.selectors.Read) {
				w := out[what]
				w.Unscheduled, w.Devices = w.Unscheduled || one.tried, max(w.Devices, one.devices)
				if i < most {
					if may := k.mayRun(ctx, admitted, what, c.Expressions(a), pools); len(may) < len(pools) {
						w.Nodes = append(w.Nodes, may)
					}
				}
				out[what] = w
			}
		}
	}
	return out
}

// mayRun returns the admitted nodes whose devices match the selectors of a request.
func (k *Keeper) mayRun(
	ctx context.Context, admitted map[string]bool, what string, expressions []string, pools []pool.Pool,
) map[string]bool {
	out, alike := map[string]bool{}, map[[32]*pool.Shape]bool{}
	for _, p := range pools {
		if !admitted[p.Node] {
			continue
		}
		shape, ok := p.Shape()
		matches, known := alike[shape]
		if !known || !ok {
			matches = k.couldMatch(ctx, p, what, expressions)
			alike[shape] = matches
		}
		if matches {
			out[p.Node] = true
		}
	}
	return out
}

// admits returns the nodes on which a pod may run, apart from its devices. A node that is unknown or too large to judge
// is among them.
func (k *Keeper) admits(one *podKind, classes selector.Resources, pools []pool.Pool) map[string]bool {
	out, served := map[string]bool{}, waiting.Served(one.pod, classes)
	for _, p := range pools {
		found, _, _ := k.cluster.Nodes.GetIndexer().GetByKey(p.Node) // Reading the cache cannot fail.
		node, ok := found.(*corev1.Node)
		if !ok || bounded.TooLarge(node) || waiting.Excluded(node, one.pod, one.allocated, served) == "" {
			out[p.Node] = true
		}
	}
	return out
}

// couldMatch reports whether the expressions select a device of a pool that counts for what. The pool stands for those
// that are alike, so an expression that reads what differs among these excludes none.
func (k *Keeper) couldMatch(ctx context.Context, p pool.Pool, what string, expressions []string) bool {
	expressions = slices.DeleteFunc(slices.Clone(expressions), func(e string) bool {
		r := k.selectors.Read(e)
		return !r.Complete || slices.ContainsFunc(r.Names, func(n selector.Name) bool { return pool.Identity(n.ID) })
	})
	empty := ask.Empty(p)
	for _, s := range empty.Slices {
		for i, d := range s.Spec.Devices {
			if !slices.Contains(offers(d, pool.KindOf(d)), what) {
				continue
			}
			if failed, err := k.selectors.Failing(ctx, expressions, s.Candidate(i)); failed == "" || err != nil {
				return true
			}
		}
	}
	return false
}

// serves has the profiles that a node can publish, demand.Groups and demand.Shares, and its whole GPUs in the order in
// which the scheduler tries them. open means that it has other GPUs too. groups has the PCI addresses of the members.
type serves struct {
	gpus   []demand.GPU
	what   map[string]bool
	open   bool
	groups map[gpu.Device][]string
}

func servesOf(p pool.Pool) serves {
	out := serves{what: map[string]bool{}, groups: map[gpu.Device][]string{}}
	whole, others := map[string]bool{}, map[string]bool{}
	for d, kind := range p.Devices() {
		for _, what := range offers(d, kind) {
			out.what[what] = true
		}
		named, err := gpu.ParseName(d.Name)
		switch {
		case err != nil:
		case kind.Type == gpu.KindGPU:
			whole[named.PCIAddress] = true
			out.gpus = append(out.gpus, demand.GPU{Address: named.PCIAddress,
				Kind: cmp.Or(pool.Text(d, wire.MIGLayoutAttribute), kind.Product)})
		case kind.Type == gpu.KindGroup:
			out.groups[named], _, _ = pool.Needs(named, d)
		default:
			others[named.PCIAddress] = true
		}
	}
	for address := range others {
		out.open = out.open || !whole[address]
	}
	return out
}

// of returns the GPUs of a node, with what claims hold of them. The caller holds k.mu.
func (s serves) of(p pool.Pool, held *objects.Held) []demand.GPU {
	out, closed := slices.Clone(s.gpus), map[string]bool{}
	held.Mark(out, s.groups)
	for _, one := range p.Slices {
		for _, u := range one.Unhealthy {
			// A device whose shares end can be shared again.
			if u.Taint.Key == wire.UnhealthyTaint && u.Taint.Value == string(resourceslices.NoDemand) {
				continue
			}
			if named, err := gpu.ParseName(one.Shape.Spec.Devices[u.Device].Name); err == nil {
				closed[named.PCIAddress] = true
			}
		}
	}
	for i := range out {
		out[i].Closed = closed[out[i].Address]
	}
	return out
}

// leastServing and servingProduct are the limit of serving nodes where the scheduler copies counters. It takes 50 to
// 100 µs for a pod, a node and a serving node (docs/scaling.md), so with the limit about half a second for a pod.
const leastServing, servingProduct = 4, 7000

// limit sets the largest number of serving nodes.
func (k *Keeper) limit(nodes int, server schedulerfault.Version) {
	k.servers.Limited, k.servers.Most = false, k.MaxServingNodes
	if k.MaxServingNodes == 0 && server.CopiesCounters() {
		k.servers.Most = max(leastServing, servingProduct/max(nodes, 1))
	}
}

// report writes an Event, but seldom, if the limit keeps a pod waiting.
func (k *Keeper) report() {
	if !k.servers.Limited || k.Events == nil || k.written.ResourceVersion == "" ||
		time.Since(k.limitedAt) < limitedAgain {
		return
	}
	k.limitedAt = time.Now()
	why := "the chart value controller.maxServingNodes says so"
	if k.MaxServingNodes == 0 {
		why = "this version's scheduler takes too long with more; upgrade to Kubernetes 1.37, or set the chart value " +
			"controller.maxServingNodes"
	}
	k.Events.Eventf(k.written, corev1.EventTypeWarning, "ServingNodesLimited",
		"Pods wait for partitions, groups or shares, and no more than %d nodes publish these: %s", k.servers.Most, why)
}

// limitedAgain is the least time between two Events about the limit.
const limitedAgain = 5 * time.Minute

// offers returns what a device counts for: its profile, demand.Groups, demand.Shares.
func offers(d resourceapi.Device, kind pool.Kind) (out []string) {
	switch kind.Type {
	case gpu.KindGroup:
		out = append(out, demand.Groups)
	case gpu.KindMIG:
		out = append(out, kind.Profile)
	case gpu.KindMonitor:
		return nil
	}
	if ptr.Deref(d.AllowMultipleAllocations, false) {
		out = append(out, demand.Shares)
	}
	return out
}

// serving returns the serving nodes of each profile and of groups that nodes publish now, and the GPUs of serving and
// sample nodes. again is the delay until the next choice if nothing changes; 0: none. published are the ones of the
// last ConfigMap and the ones asked for now. All nodes publish the ones in all, so these have no serving nodes.
func (k *Keeper) serving(
	last demand.State, published map[string]bool, all, samples []string, waiting map[string]demand.Waiting,
	now time.Time,
) (out demand.State, again time.Duration) {
	out = demand.State{Samples: samples, Serving: map[string][]string{}, GPUs: map[string][]string{}}
	k.servers.Keep(published)
	k.servers.Exhausted = false
	cut := map[string]bool{}
	for _, nodes := range last.Serving {
		for _, node := range nodes {
			cut[node] = true
		}
	}
	alike, abilities, nodes := map[[32]*pool.Shape]serves{}, map[string]serves{}, map[string]demand.Candidate{}
	gpus, whole := map[string][]demand.GPU{}, map[string]bool{}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.cluster.Possible() {
		shape, ok := p.Shape()
		of, known := alike[shape]
		if !known || !ok {
			of = servesOf(p)
			alike[shape] = of
		}
		held := k.holdings.Of(p.Node)
		c := demand.Candidate{Node: p.Node, GPUs: len(of.gpus), Open: of.open, Changed: held.Changed()}
		gpus[p.Node], whole[p.Node] = of.of(p, held), p.Whole
		for _, g := range gpus[p.Node] {
			switch {
			case g.Whole:
				c.Full++
			case g.Part:
				c.Partly++
			}
		}
		abilities[p.Node], nodes[p.Node] = of, c
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
		if waiting[what].Unscheduled {
			again = demand.Grow
		}
		out.Serving[what] = k.servers.Choose(
			last.Serving[what], what, candidates, k.holdings.Holders(what), waiting[what], now)
		for _, name := range out.Serving[what] {
			cut[name] = true
		}
	}
	free, shrink := k.servers.Free(out.Serving, nodes, waiting, now)
	for _, name := range samples {
		free[name] = max(free[name], 0) // A node that only has samples needs no free GPU.
	}
	for name, n := range free {
		before, listed := last.GPUs[name]
		switch of, known := gpus[name]; {
		case known && (whole[name] || !listed):
			out.GPUs[name] = demand.ServingGPUs(before, of, n, shrink, slices.Contains(samples, name))
		case listed: // Slices are missing, as while its kubelet starts or its plugin writes.
			out.GPUs[name] = before
		}
	}
	return out, again
}
