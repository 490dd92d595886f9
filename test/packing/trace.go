// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// request is a claim for a partition of a profile, for a share, a group or a whole GPU, from its arrival to its departure.
type request struct {
	// profile is empty for a whole GPU, "nvlink-4" for a group, "share-470" for 0.47 of a GPU.
	profile string
	// arrives and departs are in hours.
	arrives, departs float64
}

// divides reports whether the request is for a part of a GPU.
func (r request) divides() bool { return r.profile != "" && groupSize(r.profile) == 0 }

// shareSize is the size of a share in thousandths of a GPU, 0 for any other request.
func shareSize(profile string) int { return sizeAfter("share-", profile) }

// sizeAfter is the number after a prefix, 0 for a profile without the prefix.
func sizeAfter(prefix, profile string) int {
	size, ok := strings.CutPrefix(profile, prefix)
	if !ok {
		return 0
	}
	n, _ := strconv.Atoi(size)
	return n
}

// mix is a distribution of requests, by weight.
type mix struct {
	name    string
	weights map[string]int
	life    *life
}

// mixes use the profiles of an H100; the empty profile is the whole GPU.
var mixes = []mix{
	{"small", map[string]int{"1g.10gb": 70, "1g.20gb": 10, "2g.20gb": 15, "3g.40gb": 5}, nil},
	{"even", map[string]int{"1g.10gb": 40, "2g.20gb": 25, "3g.40gb": 20, "4g.40gb": 10, "7g.80gb": 5}, nil},
	{"large", map[string]int{"1g.10gb": 20, "2g.20gb": 20, "3g.40gb": 25, "4g.40gb": 20, "7g.80gb": 15}, nil},
	{"whole too", map[string]int{"1g.10gb": 45, "2g.20gb": 20, "3g.40gb": 20, "": 15}, nil},
}

// slicesOf holds the number of memory slices of a request.
var slicesOf = map[string]int{"1g.10gb": 1, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8, "": 8,
	"nvlink-2": 16, "nvlink-4": 32, "nvlink-8": 64}

// trace makes n requests with exponential times between arrivals, and stays of the mix. If none were refused, the
// concurrent requests would take the load's share of the GPUs on average.
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
		mean += float64(m.weights[p]*milli(p)) / wholeGPU
	}
	mean /= float64(total)
	rate := load * float64(gpus) / mean / m.life.mean() // arrivals in an hour
	var out []request
	now := 0.0
	for range n {
		now += random.ExpFloat64() / (rate * m.life.rate(now))
		pick := random.IntN(total)
		for _, p := range profiles {
			if pick -= m.weights[p]; pick < 0 {
				out = append(out, request{p, now, now + m.life.stay(random)})
				break
			}
		}
	}
	return out
}
