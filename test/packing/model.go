// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"math/rand/v2"
	"slices"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/layout"
	"gpu-dra-driver/pkg/partition/layout/layouttest"
)

// firstFit is a model of the scheduler over GPUs with the same order, fast enough to try every order.
type firstFit struct {
	// starts lists the placements of each profile in the order of the attempts.
	starts map[string][]int
	masks  []uint16
}

// fit returns the GPU and the start of the first free placement. The GPU is -1 if none is free.
func (f *firstFit) fit(profile string) (i, start int) {
	for i := range f.masks {
		for _, start := range f.starts[profile] {
			if f.masks[i]&slicesMask(profile, start) == 0 {
				return i, start
			}
		}
	}
	return -1, 0
}

func (f *firstFit) place(profile string) (gpu.Device, bool, error) {
	i, start := f.fit(profile)
	if i < 0 {
		return gpu.Device{}, false, nil
	}
	f.masks[i] |= slicesMask(profile, start)
	kind := gpu.KindMIG
	if profile == "" {
		kind = gpu.KindGPU
	}
	return gpu.Device{Kind: kind, PCIAddress: address(i), Profile: profile, Start: start}, true, nil
}

func (f *firstFit) release(d gpu.Device) {
	f.masks[position(d.PCIAddress)] &^= slicesMask(d.Profile, d.Start)
}

// slicesMask has a bit for each memory slice of a placement.
func slicesMask(profile string, start int) uint16 { return uint16(1<<slicesOf[profile]-1) << start }

// ourStarts returns the driver's order for the model.
func ourStarts() map[string][]int {
	out := map[string][]int{"": {0}}
	for _, c := range layout.Order(layouttest.H100().Profiles) {
		out[c.Profile.Name] = append(out[c.Profile.Name], c.Placement.Start)
	}
	return out
}

// naiveStarts returns the placements ordered by start.
func naiveStarts() map[string][]int {
	out := ourStarts()
	for name := range out {
		slices.Sort(out[name])
	}
	return out
}

// randomStarts returns the placements in random order.
func randomStarts(seed uint64) map[string][]int {
	random, out := rand.New(rand.NewPCG(seed, 7)), naiveStarts()
	for _, name := range slices.Sorted(maps.Keys(out)) {
		random.Shuffle(len(out[name]), func(a, b int) { out[name][a], out[name][b] = out[name][b], out[name][a] })
	}
	return out
}

// accepted counts the requests that first-fit accepts.
func accepted(starts map[string][]int, gpus int, requests []request) int {
	masks := make([]uint16, gpus)
	type stay struct {
		departs float64
		gpu     int
		mask    uint16
	}
	var there []stay
	n := 0
	for _, r := range requests {
		there = slices.DeleteFunc(there, func(s stay) bool {
			if s.departs <= r.arrives {
				masks[s.gpu] &^= s.mask
				return true
			}
			return false
		})
		size := slicesOf[r.profile]
	search:
		for i := range masks {
			for _, start := range starts[r.profile] {
				if mask := uint16(1<<size-1) << start; masks[i]&mask == 0 {
					masks[i] |= mask
					there = append(there, stay{r.departs, i, mask})
					n++
					break search
				}
			}
		}
	}
	return n
}

// twins are pairs of equivalent placements: a placement that overlaps one of the first two slices overlaps both, and
// so on. Orders that differ only in twins accept the same requests, so one of them is tried.
var twins = map[string][][2]int{"1g.10gb": {{0, 1}, {2, 3}, {4, 5}}, "2g.20gb": {{0, 2}}}

// canonical reports whether an order is the tried one among its twins.
func canonical(profile string, starts []int) bool {
	for _, pair := range twins[profile] {
		if slices.Index(starts, pair[0]) > slices.Index(starts, pair[1]) {
			return false
		}
	}
	return true
}

// bestFixed tries every order of the mix's placements, and returns the largest number of accepted requests.
func bestFixed(m mix, gpus int, traces [][]request) (best, tried int) {
	starts := ourStarts()
	var names []string
	for name := range m.weights {
		if len(starts[name]) > 1 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var vary func(i int)
	vary = func(i int) {
		if i == len(names) {
			n := 0
			for _, t := range traces {
				n += accepted(starts, gpus, t)
			}
			best = max(best, n)
			tried++
			return
		}
		permute(starts[names[i]], 0, func() {
			if canonical(names[i], starts[names[i]]) {
				vary(i + 1)
			}
		})
	}
	vary(0)
	return best, tried
}

// permute calls each with every order of a list, and restores the list.
func permute(list []int, from int, each func()) {
	if from == len(list)-1 {
		each()
		return
	}
	for i := from; i < len(list); i++ {
		list[from], list[i] = list[i], list[from]
		permute(list, from+1, each)
		list[from], list[i] = list[i], list[from]
	}
}

// optimum is the largest number of requests that one GPU can accept with knowledge of the future and the right to
// refuse. It tries every assignment, except those that cannot beat the best.
func optimum(requests []request) int {
	starts := ourStarts()
	best := 0
	type stay struct {
		departs float64
		mask    uint16
	}
	var try func(i, n int, there []stay)
	try = func(i, n int, there []stay) {
		best = max(best, n)
		if i == len(requests) || n+len(requests)-i <= best {
			return
		}
		r := requests[i]
		var now []stay
		occupied := uint16(0)
		for _, s := range there {
			if s.departs > r.arrives {
				now = append(now, s)
				occupied |= s.mask
			}
		}
		for _, start := range starts[r.profile] {
			if mask := uint16(1<<slicesOf[r.profile]-1) << start; occupied&mask == 0 {
				try(i+1, n+1, append(slices.Clip(now), stay{r.departs, mask}))
			}
		}
		try(i+1, n, now)
	}
	try(0, 0, nil)
	return best
}
