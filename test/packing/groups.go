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

	"gpu-dra-driver/pkg/gpu"
)

// groupSize is the number of GPUs in a request for a group, 0 for any other request.
func groupSize(profile string) int { return sizeAfter("nvlink-", profile) }

// groupMixes are mixes of groups, GPUs and partitions.
var groupMixes = []mix{
	{"notebooks and training", map[string]int{"1g.10gb": 45, "2g.20gb": 15, "": 20, "nvlink-2": 10, "nvlink-4": 10}, nil},
	{"inference and training", map[string]int{"": 50, "nvlink-2": 30, "nvlink-4": 20}, nil},
}

var groupLoads = []float64{0.4, 0.6, 0.8}

// groupOrder is the order of the published groups, by their first GPUs. GPUs start at 0.
type groupOrder struct {
	name   string
	starts func(seed uint64) map[int][]int
}

func fixed(pairs, fours []int) func(uint64) map[int][]int {
	return func(uint64) map[int][]int { return map[int][]int{2: pairs, 4: fours, 8: {0}} }
}

var groupOrders = []groupOrder{
	{"ours", fixed([]int{2, 0, 6, 4}, []int{4, 0})},
	{"from the other end", fixed([]int{6, 4, 2, 0}, []int{4, 0})},
	{"naive", fixed([]int{0, 2, 4, 6}, []int{0, 4})},
	{"random", func(seed uint64) map[int][]int {
		out := map[int][]int{2: {0, 2, 4, 6}, 4: {0, 4}, 8: {0}}
		random := rand.New(rand.NewPCG(seed, 11))
		for _, size := range []int{2, 4} {
			random.Shuffle(len(out[size]), func(a, b int) { out[size][a], out[size][b] = out[size][b], out[size][a] })
		}
		return out
	}},
}

// linkedFit is a model of the scheduler over eight GPUs on switches.
type linkedFit struct {
	firstFit
	groups map[int][]int
}

func newLinkedFit(groups map[int][]int) *linkedFit {
	return &linkedFit{firstFit{starts: ourStarts(), masks: make([]uint16, gpus)}, groups}
}

// find returns the first GPU of a free group, or -1.
func (f *linkedFit) find(size int) int {
	for _, first := range f.groups[size] {
		if !slices.ContainsFunc(f.masks[first:first+size], func(m uint16) bool { return m != 0 }) {
			return first
		}
	}
	return -1
}

func (f *linkedFit) place(profile string) (gpu.Device, bool, error) {
	size := groupSize(profile)
	if size == 0 {
		return f.firstFit.place(profile)
	}
	first := f.find(size)
	if first < 0 {
		return gpu.Device{}, false, nil
	}
	for i := first; i < first+size; i++ {
		f.masks[i] = 0xff
	}
	return gpu.Device{Kind: gpu.KindGroup, Size: size, PCIAddress: address(first)}, true, nil
}

func (f *linkedFit) release(d gpu.Device) {
	if d.Kind != gpu.KindGroup {
		f.firstFit.release(d)
		return
	}
	first := position(d.PCIAddress)
	for i := range d.Size {
		f.masks[first+i] = 0
	}
}

// groupScore is the result of a replay of groups: the number of accepted requests, and the share of the time in which
// a group of each size was free.
type groupScore struct {
	accepted  int
	available map[int]float64
	fragments fragments
	log       []string
}

// replayGroups plays a trace over a node of eight GPUs. available may be nil.
func replayGroups(p placer, available func(size int) bool, requests []request) (groupScore, error) {
	s := groupScore{available: map[int]float64{}}
	type stay struct {
		departs float64
		device  gpu.Device
	}
	var there []stay
	used := make(occupancy, gpus)
	now := 0.0
	account := func(until float64) {
		for _, size := range []int{2, 4, 8} {
			if available != nil && available(size) {
				s.available[size] += until - now
			}
		}
		s.fragments.account(until-now, used.free(), float64(used.blocked())/gpus)
		now = until
	}
	for _, r := range requests {
		slices.SortFunc(there, func(a, b stay) int { return cmp.Compare(a.departs, b.departs) })
		for len(there) > 0 && there[0].departs <= r.arrives {
			account(there[0].departs)
			p.release(there[0].device)
			used.add(there[0].device, -1)
			there = there[1:]
		}
		account(r.arrives)
		device, ok, err := p.place(r.profile)
		if err != nil {
			return s, err
		}
		if !ok {
			s.log = append(s.log, "")
			continue
		}
		s.accepted++
		s.log = append(s.log, device.Name())
		there = append(there, stay{r.departs, device})
		used.add(device, 1)
	}
	for size := range s.available {
		s.available[size] *= 100 / now
	}
	return s, nil
}

// compareGroups prints how often groups are free under each order. It fails if the naive or a random order is as good
// as the driver's within statistical error, or if the driver's order accepts less.
func compareGroups(out io.Writer) error {
	fmt.Fprintf(out, "\nGroups: %d linked GPUs, %d requests a trace, mean of %d traces\n\n", gpus, requests, traces)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mix\tload\torder\taccepted\t2 to be had\t4 to be had\t8 to be had\tlargest free group (min)\tblocked GPUs\t")
	var missed []error
	gained := map[string][]int{} // by the other order, in hundredths of a percent
	for _, m := range groupMixes {
		for _, load := range groupLoads {
			fours, taken := map[string][]int{}, map[string][]int{}
			for _, o := range groupOrders {
				total, accepted, whole := map[int]float64{}, 0, fragments{}
				for seed := range uint64(traces) {
					f := newLinkedFit(o.starts(seed))
					s, err := replayGroups(f, func(size int) bool { return f.find(size) >= 0 }, trace(m, load, gpus, requests, seed))
					if err != nil {
						return err
					}
					accepted += s.accepted
					whole.merge(s.fragments)
					for size, share := range s.available {
						total[size] += share / traces
					}
					fours[o.name] = append(fours[o.name], int(100*s.available[4]))
					taken[o.name] = append(taken[o.name], s.accepted)
				}
				fmt.Fprintf(w, "%s\t%.0f %%\t%s\t%.2f %%\t%.1f %%\t%.1f %%\t%.1f %%\t%s\t\n", m.name, 100*load, o.name,
					100*float64(accepted)/(traces*requests), total[2], total[4], total[8], whole)
			}
			for _, other := range []string{"naive", "random"} {
				gained[other] = append(gained[other], minus(fours["ours"], fours[other])...)
				if mean, deviation := difference(taken["ours"], taken[other]); mean < -2*deviation {
					missed = append(missed, fmt.Errorf("mix %s at load %.1f: ours accepts %.1f requests of a trace fewer than the %s order", m.name, load, -mean, other))
				}
			}
		}
	}
	for _, other := range []string{"naive", "random"} {
		if mean, deviation := difference(gained[other], make([]int, len(gained[other]))); mean <= 2*deviation {
			missed = append(missed, fmt.Errorf("a group of four is to be had %.2f %% (± %.2f) more of the time by our order than by the %s one", mean/100, deviation/100, other))
		}
	}
	return errors.Join(append(missed, w.Flush())...)
}

func minus(a, b []int) []int {
	out := make([]int, len(a))
	for i := range a {
		out[i] = a[i] - b[i]
	}
	return out
}
