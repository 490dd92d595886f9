// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"iter"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/gpu"
)

// State says whether a claim can get a device.
type State string

// The states.
const (
	// Free devices are available.
	Free State = "free"
	// Allocated devices belong to a claim, or to several claims that share them.
	Allocated State = "allocated"
	// Blocked devices are unavailable because of other allocations, such as the placements of an allocated GPU.
	Blocked State = "blocked"
	// Unhealthy devices are published but not available to new claims.
	Unhealthy State = "unhealthy"
)

// DeviceCounts counts devices. It leaves out monitor devices, which are neither free nor allocated.
type DeviceCounts struct {
	// Devices counts by kind and state.
	Devices map[KindState]int
	// LargestGroup is the largest number of free NVLink-connected GPUs, by model; 1 if only single GPUs are free.
	LargestGroup map[string]int
	// FreeSlices counts the free memory slices of GPUs with MIG, by model. UsableSlices counts those that the largest
	// free placement, or the whole GPU, can use at once, summed over the GPUs.
	FreeSlices, UsableSlices map[string]int64
}

type KindState struct {
	Kind
	State State
}

func newCounts() DeviceCounts {
	return DeviceCounts{Devices: map[KindState]int{}, LargestGroup: map[string]int{}, FreeSlices: map[string]int64{}, UsableSlices: map[string]int64{}}
}

// add adds another pool's counts, multiplied by times; LargestGroup becomes the maximum.
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

// Fragmentation is the share of a model's free memory slices, 0 to 1, that the largest free placements of its GPUs
// cannot use. It is 0 if no slice is free.
func (c DeviceCounts) Fragmentation(model string) float64 {
	if c.FreeSlices[model] == 0 {
		return 0
	}
	return 1 - float64(c.UsableSlices[model])/float64(c.FreeSlices[model])
}

// Count counts all pools. held lists the allocated devices by node. Equal pools without allocated devices are counted
// once and multiplied.
func Count(pools []Pool, held map[string][]string) DeviceCounts {
	total := newCounts()
	var idle []Pool
	for _, p := range pools {
		healthy := !slices.ContainsFunc(p.Slices, func(s *Slice) bool { return len(s.Unhealthy) > 0 })
		if healthy && len(held[p.Node]) == 0 {
			idle = append(idle, p)
			continue
		}
		total.add(p.Count(held[p.Node]), 1)
	}
	for p, times := range distinct(idle) {
		total.add(p.Count(nil), times)
	}
	return total
}

// distinct iterates over one pool of each shape and the number of pools that have it.
func distinct(pools []Pool) iter.Seq2[Pool, int] {
	return func(yield func(Pool, int) bool) {
		first, times := map[[32]*Shape]Pool{}, map[[32]*Shape]int{}
		for _, p := range pools {
			key, ok := p.Shape()
			if !ok && !yield(p, 1) {
				return
			} else if ok {
				first[key] = p
				times[key]++
			}
		}
		for key, p := range first {
			if !yield(p, times[key]) {
				return
			}
		}
	}
}

// Count counts the devices of one pool; held lists its allocated devices.
func (p Pool) Count(held []string) DeviceCounts {
	left, states := p.states(held)
	t := newCounts()
	pieces := map[string]int64{} // By counter set: the memory slices of its largest free device.
	models := map[string]string{}
	elsewhere := map[string]bool{} // Counter sets of GPUs that are in an allocated group or unhealthy.
	for d, kind := range p.Devices() {
		if kind.Type == gpu.KindMonitor {
			continue
		}
		state := states[d.Name]
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
			case state == Unhealthy, state == Blocked && left.fitsIn(c): // Blocked by another counter set.
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

// States returns the states of the pool's devices by name; held lists the allocated devices.
func (p Pool) States(held []string) map[string]State {
	_, states := p.states(held)
	return states
}

func (p Pool) states(held []string) (left counters, states map[string]State) {
	left = p.counters()
	unhealthy, taken := sets.New[string](), sets.New(held...)
	for _, s := range p.Slices {
		unhealthy.Insert(s.Unhealthy...)
	}
	for d := range p.Devices() {
		if taken.Has(d.Name) {
			left.take(d)
		}
	}
	states = map[string]State{}
	for d := range p.Devices() {
		switch {
		case taken.Has(d.Name):
			states[d.Name] = Allocated
		case unhealthy.Has(d.Name):
			states[d.Name] = Unhealthy
		case !left.fits(d):
			states[d.Name] = Blocked
		default:
			states[d.Name] = Free
		}
	}
	return left, states
}

// sliceCounter begins the names of the published counters of memory slices.
const sliceCounter = "memory-slice-"

func memorySlices(counters map[string]resourceapi.Counter) (n int64) {
	for name, c := range counters {
		if strings.HasPrefix(name, sliceCounter) {
			n += c.Value.Value()
		}
	}
	return n
}

// counters are the remaining values of counters, by set and name.
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
