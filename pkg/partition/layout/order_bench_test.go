// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/partition/layout"
)

// BenchmarkOrder replays requests for partitions on eight H100 at a load of 90 %. It reports how many of them find room if the
// placements of a profile are tried in the driver's order, and by their starts.
func BenchmarkOrder(b *testing.B) {
	sizes, ours := map[string]int{}, map[string][]int{}
	for _, c := range layout.Order(layouttest.H100().Profiles) {
		sizes[c.Profile.Name] = c.Placement.Size
		ours[c.Profile.Name] = append(ours[c.Profile.Name], c.Placement.Start)
	}
	byStart := map[string][]int{}
	for name, starts := range ours {
		byStart[name] = slices.Sorted(slices.Values(starts))
	}
	accepted, naive, all := 0, 0, 0
	for seed := uint64(0); b.Loop(); seed++ {
		all += requests
		accepted += replay(ours, sizes, seed)
		naive += replay(byStart, sizes, seed)
	}
	b.ReportMetric(100*float64(accepted)/float64(all), "%-accepted")
	b.ReportMetric(100*float64(naive)/float64(all), "%-by-start")
}

const (
	requests = 800
	gpus     = 8
	load     = 0.9
)

// replay returns how many requests of a trace find room. They arrive and stay for exponential times.
func replay(starts map[string][]int, sizes map[string]int, seed uint64) (accepted int) {
	profiles := []string{
		"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "2g.20gb", "2g.20gb", "3g.40gb", "3g.40gb", "4g.40gb",
	}
	mean := 0.0
	for _, p := range profiles {
		mean += float64(sizes[p]) / float64(len(profiles)) / 8
	}
	random := rand.New(rand.NewPCG(seed, 1))
	type stay struct {
		until float64
		gpu   int
		mask  uint16
	}
	var there []stay
	used, now := [gpus]uint16{}, 0.0
	for range requests {
		now += random.ExpFloat64() * mean / (load * gpus)
		there = slices.DeleteFunc(there, func(s stay) bool {
			if s.until > now {
				return false
			}
			used[s.gpu] &^= s.mask
			return true
		})
		p, until := profiles[random.IntN(len(profiles))], now+random.ExpFloat64()
	search:
		for g := range used {
			for _, start := range starts[p] {
				if mask := uint16(1<<sizes[p]-1) << start; used[g]&mask == 0 {
					used[g] |= mask
					there = append(there, stay{until, g, mask})
					accepted++
					break search
				}
			}
		}
	}
	return accepted
}
