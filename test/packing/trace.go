// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"
)

// request is a claim for a partition of a profile, or for a whole GPU, from its arrival to its departure.
type request struct {
	// profile is empty for a whole GPU.
	profile          string
	arrives, departs float64
}

// mix is a distribution of requests, by weight.
type mix struct {
	name    string
	weights map[string]int
}

// mixes use the profiles of an H100; the empty profile is the whole GPU.
var mixes = []mix{
	{"small", map[string]int{"1g.10gb": 70, "1g.20gb": 10, "2g.20gb": 15, "3g.40gb": 5}},
	{"even", map[string]int{"1g.10gb": 40, "2g.20gb": 25, "3g.40gb": 20, "4g.40gb": 10, "7g.80gb": 5}},
	{"large", map[string]int{"1g.10gb": 20, "2g.20gb": 20, "3g.40gb": 25, "4g.40gb": 20, "7g.80gb": 15}},
	{"whole too", map[string]int{"1g.10gb": 45, "2g.20gb": 20, "3g.40gb": 20, "": 15}},
}

// slicesOf holds the number of memory slices of a request.
var slicesOf = map[string]int{"1g.10gb": 1, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8, "": 8,
	"nvlink-2": 16, "nvlink-4": 32, "nvlink-8": 64}

// trace makes n requests with exponential durations and times between arrivals. If none were refused, the concurrent
// requests would take the load's share of the slices on average.
func trace(m mix, load float64, gpus, n int, seed uint64) []request {
	random := rand.New(rand.NewPCG(seed, uint64(load*1000)))
	var profiles []string
	total, mean := 0, 0.0
	for p := range m.weights {
		profiles = append(profiles, p)
	}
	slices.Sort(profiles)
	for _, p := range profiles {
		total += m.weights[p]
		mean += float64(m.weights[p] * slicesOf[p])
	}
	mean /= float64(total)
	rate := load * float64(8*gpus) / mean // arrivals in one mean stay
	var out []request
	now := 0.0
	for range n {
		now += random.ExpFloat64() / rate
		pick := random.IntN(total)
		for _, p := range profiles {
			if pick -= m.weights[p]; pick < 0 {
				out = append(out, request{p, now, now + random.ExpFloat64()})
				break
			}
		}
	}
	return out
}
