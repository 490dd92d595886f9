// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/gpu"
)

// State is what becomes of a device that a claim asks for.
type State string

// The states.
const (
	// Free devices can be handed out.
	Free State = "free"
	// Allocated devices are a claim's, or several claims' who share one.
	Allocated State = "allocated"
	// Blocked devices cannot be had because of what is allocated: a GPU's placements while the GPU is a claim's.
	Blocked State = "blocked"
	// Unhealthy devices are published and not for new claims.
	Unhealthy State = "unhealthy"
)

// DeviceCounts counts devices. Monitor devices are not in it: they are neither taken nor free.
type DeviceCounts struct {
	// Devices are all, by kind and state.
	Devices map[KindState]int
	// LargestGroup is the most GPUs that one claim can have NVLink-connected, by model; 1 where single GPUs are free.
	LargestGroup map[string]int
	// FreeSlices are the memory slices that no claim has, on GPUs that can be cut; UsableSlices of them those that the
	// largest placement, or the GPU as a whole, could take at once, added up over the GPUs. By model.
	FreeSlices, UsableSlices map[string]int64
}

// KindState is a kind of device in a state.
type KindState struct {
	Kind
	State State
}

// newCounts is one of nothing.
func newCounts() DeviceCounts {
	return DeviceCounts{Devices: map[KindState]int{}, LargestGroup: map[string]int{}, FreeSlices: map[string]int64{}, UsableSlices: map[string]int64{}}
}

// add adds another counts so many times.
func (c DeviceCounts) add(o DeviceCounts, times int) {
	for k, n := range o.Devices {
		c.Devices[k] += n * times
	}
	for model, n := range o.LargestGroup {
		c.LargestGroup[model] = max(c.LargestGroup[model], n)
	}
	for model, n := range o.FreeSlices {
		c.FreeSlices[model] += n * int64(times)
	}
	for model, n := range o.UsableSlices {
		c.UsableSlices[model] += n * int64(times)
	}
}

// Fragmentation is the part of a model's free memory slices, 0 to 1, that its GPUs' largest free placements could not
// take: 0 where every free slice can be had in one piece per GPU, and where there is none.
func (c DeviceCounts) Fragmentation(model string) float64 {
	if c.FreeSlices[model] == 0 {
		return 0
	}
	return 1 - float64(c.UsableSlices[model])/float64(c.FreeSlices[model])
}

// Count counts all pools. Held are the names of the devices that claims hold, by node. Pools of one shape of which claims
// hold nothing are counted once.
func Count(pools []Pool, held map[string][]string) DeviceCounts {
	total, idle := newCounts(), map[[32]*Shape]int{}
	for _, p := range pools {
		if key, ok := p.Key(); ok && len(held[p.Node]) == 0 {
			idle[key]++
			continue
		}
		total.add(p.Count(held[p.Node]), 1)
	}
	for key, times := range idle {
		var p Pool
		for _, shape := range key {
			if shape != nil {
				p.Slices = append(p.Slices, &Slice{Shape: shape})
			}
		}
		total.add(p.Count(nil), times)
	}
	return total
}

// Count counts one pool's devices.
func (p Pool) Count(held []string) DeviceCounts {
	left := p.counters()
	unhealthy, taken := sets.New[string](), sets.New(held...)
	for _, s := range p.Slices {
		unhealthy.Insert(s.Unhealthy...)
	}
	for d := range p.Devices() {
		if taken.Has(d.Name) {
			left.take(d)
		}
	}
	t := newCounts()
	pieces := map[string]int64{} // of a counter set, the memory slices that its largest free device takes
	models := map[string]string{}
	elsewhere := map[string]bool{} // counter sets of GPUs that a group has, or that are not well
	for d, kind := range p.Devices() {
		if kind.Type == gpu.KindMonitor {
			continue
		}
		state := Free
		switch {
		case taken.Has(d.Name):
			state = Allocated
		case unhealthy.Has(d.Name):
			state = Unhealthy
		case !left.fits(d):
			state = Blocked
		}
		t.Devices[KindState{kind, state}]++
		if state == Free && (kind.Type == gpu.KindGPU || kind.Type == gpu.KindGroup) {
			t.LargestGroup[kind.Product] = max(t.LargestGroup[kind.Product], kind.GPUs)
		}
		if kind.Type == gpu.KindGroup {
			continue
		}
		for _, c := range d.ConsumesCounters {
			n := memorySlices(c.Counters)
			if n == 0 {
				continue
			}
			models[c.CounterSet] = kind.Product
			switch {
			case state == Unhealthy, state == Blocked && left.fitsIn(c): // Or it is taken, and not by what is in this set.
				elsewhere[c.CounterSet] = true
			case state == Free:
				pieces[c.CounterSet] = max(pieces[c.CounterSet], n)
			}
		}
	}
	for set, model := range models {
		if elsewhere[set] {
			continue
		}
		for name, n := range left[set] {
			if strings.HasPrefix(name, sliceCounter) {
				t.FreeSlices[model] += max(n, 0)
			}
		}
		t.UsableSlices[model] += pieces[set]
	}
	return t
}

// sliceCounter begins the names of the counters of memory slices, as the DRA driver publishes them.
const sliceCounter = "memory-slice-"

func memorySlices(counters map[string]resourceapi.Counter) (n int64) {
	for name, c := range counters {
		if strings.HasPrefix(name, sliceCounter) {
			n += c.Value.Value()
		}
	}
	return n
}

// counters are what is left of each counter, by set.
type counters map[string]map[string]int64

func (p Pool) counters() counters {
	out := counters{}
	for _, s := range p.Slices {
		for _, set := range s.Shape.SharedCounters {
			values := map[string]int64{}
			for name, c := range set.Counters {
				values[name] = c.Value.Value()
			}
			out[set.Name] = values
		}
	}
	return out
}

func (c counters) take(d resourceapi.Device) {
	for _, use := range d.ConsumesCounters {
		for name, n := range use.Counters {
			if c[use.CounterSet] != nil {
				c[use.CounterSet][name] -= n.Value.Value()
			}
		}
	}
}

func (c counters) fits(d resourceapi.Device) bool {
	return !slices.ContainsFunc(d.ConsumesCounters, func(use resourceapi.DeviceCounterConsumption) bool { return !c.fitsIn(use) })
}

func (c counters) fitsIn(use resourceapi.DeviceCounterConsumption) bool {
	for name, n := range use.Counters {
		if c[use.CounterSet][name] < n.Value.Value() {
			return false
		}
	}
	return true
}
