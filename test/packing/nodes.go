// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

const (
	// clusterNodes have eight linked GPUs each.
	clusterNodes    = 32
	clusterRequests = 16000
	clusterTraces   = 4
)

var clusterLoads = []float64{0.4, 0.8}

// policy says which nodes offer partitions and shares.
type policy struct {
	name string
	// few means that a set of nodes offers them which grows and shrinks. Otherwise all nodes do.
	few    bool
	growth growth
}

var policies = []policy{{name: "all nodes"}, {"few, doubled", true, doubled}, {"few, stepped", true, stepped}}

// scoring is the scheduler's choice among the nodes on which a pod fits. It counts the CPUs and memory that pods request,
// which are assumed to be in proportion to their GPUs.
type scoring string

const (
	// spread is the scheduler's default, LeastAllocated. pack is MostAllocated.
	spread scoring = "spread"
	pack   scoring = "pack"
)

// sharedFit is a model of the scheduler over a node with eight GPUs on switches, which also has shares.
type sharedFit struct {
	*linkedFit
	// shares are the used parts of the GPUs with shares, in thousandths. Such a GPU has no free slice.
	shares []int
	used   occupancy
	// held is the number of claims for parts of GPUs.
	held int
}

func newSharedFit() *sharedFit {
	return &sharedFit{linkedFit: newLinkedFit(groupOrders[0].starts(0)), shares: make([]int, gpus), used: make(occupancy, gpus)}
}

// share returns the first GPU with room for a share, or -1.
func (f *sharedFit) share(size int) int {
	for i, mask := range f.masks {
		if mask == 0 || f.shares[i] > 0 && f.shares[i]+size <= wholeGPU {
			return i
		}
	}
	return -1
}

// fits reports whether place would find a device.
func (f *sharedFit) fits(profile string) bool {
	if size := shareSize(profile); size > 0 {
		return f.share(size) >= 0
	}
	if size := groupSize(profile); size > 0 {
		return f.find(size) >= 0
	}
	i, _ := f.fit(profile)
	return i >= 0
}

func (f *sharedFit) place(profile string) (gpu.Device, bool, error) {
	d, ok, err := gpu.Device{}, false, error(nil)
	if size := shareSize(profile); size == 0 {
		d, ok, err = f.linkedFit.place(profile)
	} else if i := f.share(size); i >= 0 {
		f.masks[i] = 0xff
		f.shares[i] += size
		d, ok = gpu.Device{Kind: gpu.KindGPU, PCIAddress: address(i), Profile: profile}, true
	}
	if ok {
		f.count(d, 1)
	}
	return d, ok, err
}

func (f *sharedFit) release(d gpu.Device) {
	f.count(d, -1)
	size := shareSize(d.Profile)
	if size == 0 {
		f.linkedFit.release(d)
		return
	}
	i := position(d.PCIAddress)
	if f.shares[i] -= size; f.shares[i] == 0 {
		f.masks[i] = 0
	}
}

func (f *sharedFit) count(d gpu.Device, sign int) {
	f.used.add(d, sign)
	if d.Profile != "" {
		f.held += sign
	}
}

// cluster is a model of the scheduler over several nodes.
type cluster struct {
	nodes    []*sharedFit
	names    []string
	scoring  scoring
	policy   policy
	offering offering
	random   *rand.Rand
}

func newCluster(nodes int, s scoring, p policy, seed uint64) *cluster {
	c := &cluster{scoring: s, policy: p, offering: offering{growth: p.growth}, random: rand.New(rand.NewPCG(seed, 13))}
	for i := range nodes {
		c.nodes = append(c.nodes, newSharedFit())
		c.names = append(c.names, fmt.Sprintf("n%03d", i))
	}
	return c
}

// offers reports whether a node offers partitions and shares.
func (c *cluster) offers(i int) bool { return !c.policy.few || c.offering.has(c.names[i]) }

// choose returns the node with the best score among those on which a request fits, and -1 if there is none. Of equal
// nodes it takes one by chance, as the scheduler does.
func (c *cluster) choose(r request) int {
	best, ties := -1, 0
	for i, n := range c.nodes {
		if r.divides() && !c.offers(i) || !n.fits(r.profile) {
			continue
		}
		better := -1
		if best >= 0 {
			better = cmp.Compare(n.used.sum(), c.nodes[best].used.sum())
			if c.scoring == pack {
				better = -better
			}
		}
		if better < 0 {
			best, ties = i, 0
		}
		if better <= 0 {
			if ties++; c.random.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

// candidates describes the nodes to the rule. r is the waiting request, or nil.
func (c *cluster) candidates(r *request) []candidate {
	out := make([]candidate, 0, len(c.nodes))
	for i, n := range c.nodes {
		out = append(out, candidate{name: c.names[i], held: n.held, free: n.used.free(), fits: r != nil && n.fits(r.profile)})
	}
	return out
}

// place finds a node and a device for a request. The node is -1 if none has room. waited means that the set of nodes with
// partitions and shares grew for the request.
func (c *cluster) place(r request) (node int, d gpu.Device, waited bool, err error) {
	now := clock(r.arrives)
	if c.policy.few {
		c.offering = c.offering.update(c.candidates(nil), now)
	}
	node = c.choose(r)
	if node < 0 && r.divides() && c.policy.few {
		before := len(c.offering.needed)
		c.offering = c.offering.grow(c.candidates(&r), now)
		waited = len(c.offering.needed) > before
		node = c.choose(r)
	}
	if node < 0 {
		return -1, gpu.Device{}, waited, nil
	}
	d, ok, err := c.nodes[node].place(r.profile)
	if err == nil && !ok {
		err = fmt.Errorf("place %q on node %d: it fits, but has no place", r.profile, node)
	}
	return node, d, waited, err
}

// clock turns a trace's hours into a time.
func clock(hours float64) time.Time {
	return time.Unix(0, 0).Add(time.Duration(hours * float64(time.Hour)))
}

// clusterScore is the result of a replay over several nodes.
type clusterScore struct {
	fragments
	accepted, asked int
	// groups are the accepted requests for several GPUs.
	groups, groupsAsked int
	// waited is the number of requests for which the set of nodes with partitions and shares grew.
	waited int
	// whole and cut are the wholly free nodes, and the nodes that offer or hold partitions and shares, times hours.
	whole, cut float64
}

func (s *clusterScore) merge(other clusterScore) {
	s.fragments.merge(other.fragments)
	s.accepted += other.accepted
	s.asked += other.asked
	s.groups += other.groups
	s.groupsAsked += other.groupsAsked
	s.waited += other.waited
	s.whole += other.whole
	s.cut += other.cut
}

// replayCluster plays a trace. The first quarter fills the cluster and is not measured.
func replayCluster(c *cluster, requests []request) (clusterScore, error) {
	type stay struct {
		departs float64
		node    int
		device  gpu.Device
	}
	var s clusterScore
	var there []stay // by departure
	start := requests[len(requests)/4].arrives
	now := 0.0
	account := func(until float64) {
		from := max(now, start)
		now = until
		if until <= from {
			return
		}
		largest, blocked := 0, 0
		for i, n := range c.nodes {
			free := n.used.free()
			largest = max(largest, free)
			blocked += n.used.blocked()
			if free == gpus {
				s.whole += until - from
			}
			if n.held > 0 || c.offers(i) {
				s.cut += until - from
			}
		}
		s.fragments.account(until-from, largest, float64(blocked)/float64(gpus*len(c.nodes)))
	}
	for i, r := range requests {
		for len(there) > 0 && there[0].departs <= r.arrives {
			account(there[0].departs)
			c.nodes[there[0].node].release(there[0].device)
			there = there[1:]
		}
		account(r.arrives)
		node, device, waited, err := c.place(r)
		if err != nil {
			return s, err
		}
		if node >= 0 {
			at, _ := slices.BinarySearchFunc(there, r.departs, func(a stay, departs float64) int { return cmp.Compare(a.departs, departs) })
			there = slices.Insert(there, at, stay{r.departs, node, device})
		}
		if i < len(requests)/4 {
			continue
		}
		s.count(r, node >= 0, waited)
	}
	return s, nil
}

// String returns the columns of a table, from the accepted requests to those that waited.
func (s clusterScore) String() string {
	groups := ""
	if s.groupsAsked > 0 {
		groups = fmt.Sprintf("%.1f %%", 100*float64(s.groups)/float64(s.groupsAsked))
	}
	return fmt.Sprintf("%.2f %%\t%s\t%s\t%.1f\t%.1f\t%.2f %%\t", 100*float64(s.accepted)/float64(s.asked), groups, s.fragments,
		s.whole/s.time, s.cut/s.time, 100*float64(s.waited)/float64(s.asked))
}

func (s *clusterScore) count(r request, accepted, waited bool) {
	group := groupSize(r.profile) > 0
	s.asked++
	if group {
		s.groupsAsked++
	}
	if accepted {
		s.accepted++
		if group {
			s.groups++
		}
	}
	if waited {
		s.waited++
	}
}

// compareNodes prints how much of a cluster stays whole if few nodes offer partitions and shares, beside all nodes. The
// table has a scheduler that packs for openb only. With the scheduler's default, compareNodes fails if the stepped set accepts fewer requests than all nodes, or blocks more GPUs, by more
// than the statistical error.
func compareNodes(out io.Writer) error {
	fmt.Fprintf(out, "\nCluster: %d nodes of %d linked GPUs, %d requests a trace, mean of %d traces without their first quarter\n\n",
		clusterNodes, gpus, clusterRequests, clusterTraces)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mix\tload\tscheduler\tparts on\taccepted\tof groups\tlargest free group (min)\tblocked GPUs\twhole nodes\tcut nodes\twaited\t")
	var missed []error
	for _, m := range slices.Concat(openbMixes, mixes, groupMixes[:1]) { // The second asks for no parts.
		for _, load := range clusterLoads {
			choices := []scoring{spread}
			if m.life != nil {
				choices = append(choices, pack)
			}
			for _, choice := range choices {
				results := map[policy]clusterResult{}
				for _, p := range policies {
					var err error
					if results[p], err = replayTraces(m, load, choice, p); err != nil {
						return err
					}
					fmt.Fprintf(w, "%s\t%.0f %%\t%s\t%s\t%s\n", m.name, 100*load, choice, p.name, results[p].total)
				}
				if choice == spread {
					at := fmt.Sprintf("mix %s at load %.1f", m.name, load)
					missed = append(missed, evaluateNodes(at, results[policies[0]], results[policies[len(policies)-1]]))
				}
			}
		}
	}
	return errors.Join(append(missed, w.Flush())...)
}

// clusterResult holds the sums over all traces, and the requests that each trace did not accept and its blocked GPUs in
// hundredths of a percent.
type clusterResult struct {
	total            clusterScore
	refused, blocked []int
}

func replayTraces(m mix, load float64, choice scoring, p policy) (r clusterResult, err error) {
	for seed := range uint64(clusterTraces) {
		s, err := replayCluster(newCluster(clusterNodes, choice, p, seed), trace(m, load, gpus*clusterNodes, clusterRequests, seed))
		if err != nil {
			return r, err
		}
		r.total.merge(s)
		r.refused = append(r.refused, s.asked-s.accepted)
		r.blocked = append(r.blocked, int(10000*s.fragments.blocked/s.time))
	}
	return r, nil
}

// evaluateNodes reports where few nodes refuse more requests than all nodes, or block more GPUs.
func evaluateNodes(at string, all, few clusterResult) error {
	var missed []error
	if mean, deviation := difference(few.refused, all.refused); mean > 2*deviation {
		missed = append(missed, fmt.Errorf("%s: few nodes refuse %.1f requests of a trace (± %.1f) more than all nodes", at, mean, deviation))
	}
	if mean, deviation := difference(few.blocked, all.blocked); mean > 2*deviation {
		missed = append(missed, fmt.Errorf("%s: few nodes block %.2f %% of the GPUs (± %.2f) more than all nodes", at, mean/100, deviation/100))
	}
	return errors.Join(missed...)
}
