// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"math/rand/v2"
)

// Alibaba published the tasks of a production cluster with 6,212 GPUs as openb, in
// https://github.com/alibaba/clusterdata, folder cluster-trace-gpu-v2023. All numbers below are counts and quantiles of
// its file csv/openb_pod_list_default.csv, of commit 7a6c496e4f4b. It has 8,152 tasks, of which 7,064 ask for GPUs. The
// column gpu_milli is the part of a GPU in thousandths, and num_gpu the number of GPUs.

// openbFractions are the 3,078 tasks for a part of a GPU.
var openbFractions = map[string]int{
	"share-810": 1078, "share-470": 750, "share-320": 328, "share-650": 253, "share-230": 140, "share-460": 128,
	"share-590": 75, "share-160": 74, "share-550": 72, "share-220": 62, "share-370": 47, "share-110": 24, "share-480": 19,
	"share-50": 7, "share-330": 7, "share-350": 6, "share-270": 4, "share-440": 2, "share-140": 1, "share-290": 1,
}

// openbGroups are the 75 tasks for several whole GPUs.
var openbGroups = map[string]int{"nvlink-2": 16, "nvlink-4": 15, "nvlink-8": 44}

// openbWhole is the number of tasks for one whole GPU.
const openbWhole = 3911

// openbLife has the times between creation_time and deletion_time of the tasks for GPUs. The longest hundredth stays
// for as long as the 99 % quantile: the tasks that outlive the trace would otherwise be half of its load. The hours are
// the arrivals by creation_time modulo a day, in the last 30 days, relative to their mean.
var openbLife = &life{
	stays: []quantile{{0, 5}, {0.05, 43}, {0.10, 74}, {0.25, 175}, {0.50, 545}, {0.75, 1990}, {0.90, 6260}, {0.95, 14700}, {0.99, 114036}, {1, 114036}},
	hours: [24]float64{1.39, 1.24, 1.00, 1.33, 1.19, 0.98, 0.87, 0.94, 0.74, 0.48, 0.69, 0.67, 0.51, 0.44, 0.41, 0.55, 0.95, 1.35, 1.65, 1.44, 1.14, 1.32, 1.20, 1.52},
}

// openbMixes have the shape of openb: as it is, and with so few tasks for whole GPUs, alone or in groups, that they are
// 16 % of all.
var openbMixes = []mix{openbMix("openb", openbWhole), openbMix("openb, 16 % whole", 511)}

func openbMix(name string, whole int) mix {
	m := mix{name: name, weights: map[string]int{"": whole}, life: openbLife}
	for _, part := range []map[string]int{openbFractions, openbGroups} {
		for profile, n := range part {
			m.weights[profile] = n
		}
	}
	return m
}

// quantile is a duration in seconds that the given part of the tasks, 0 to 1, does not exceed.
type quantile struct{ part, seconds float64 }

// life is a distribution of stays and of arrivals over the day. A nil life has exponential stays with a mean of an hour,
// and as many arrivals in each hour.
type life struct {
	// stays begin with part 0 and end with part 1. Between two of them the logarithm is linear.
	stays []quantile
	// hours hold the arrivals of each hour of the day, relative to their mean.
	hours [24]float64
}

// stay draws a stay, in hours.
func (l *life) stay(random *rand.Rand) float64 {
	if l == nil {
		return random.ExpFloat64()
	}
	part := random.Float64()
	for i, to := range l.stays[1:] {
		if from := l.stays[i]; part <= to.part {
			return from.seconds * math.Pow(to.seconds/from.seconds, (part-from.part)/(to.part-from.part)) / 3600
		}
	}
	return l.stays[len(l.stays)-1].seconds / 3600
}

// mean is the mean stay in hours.
func (l *life) mean() float64 {
	if l == nil {
		return 1
	}
	seconds := 0.0
	for i, to := range l.stays[1:] {
		from := l.stays[i]
		mean := from.seconds
		if to.seconds > from.seconds {
			mean = (to.seconds - from.seconds) / math.Log(to.seconds/from.seconds)
		}
		seconds += (to.part - from.part) * mean
	}
	return seconds / 3600
}

// rate is the rate of arrivals at a time in hours, relative to the mean.
func (l *life) rate(now float64) float64 {
	if l == nil {
		return 1
	}
	return l.hours[int(now)%len(l.hours)]
}
