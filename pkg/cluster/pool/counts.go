// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"iter"
	"math/bits"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
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
	blocked State = "blocked"
	// Unhealthy devices are published but not available to new claims.
	Unhealthy State = "unhealthy"
	// Cordoned devices are healthy, but an administrator took their GPU out of use, or a preemption reserves it.
	Cordoned State = "cordoned"
)

// DeviceCounts counts devices. It leaves out monitor devices, which are neither free nor allocated.
type DeviceCounts struct {
	// Devices counts by kind and state.
	Devices map[KindState]int
	// FreePlacements counts the placements at which a partition of a kind can be created. A node need not publish them
	// all.
	FreePlacements map[Kind]int
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
	return DeviceCounts{
		Devices: map[KindState]int{}, FreePlacements: map[Kind]int{}, LargestGroup: map[string]int{},
		FreeSlices: map[string]int64{}, UsableSlices: map[string]int64{},
	}
}

// add adds another pool's counts, multiplied by times; LargestGroup becomes the maximum.
func (c DeviceCounts) add(o DeviceCounts, times int) {
	addTimes(c.Devices, o.Devices, times)
	addTimes(c.FreePlacements, o.FreePlacements, times)
	addTimes(c.FreeSlices, o.FreeSlices, times)
	addTimes(c.UsableSlices, o.UsableSlices, times)
	for model, n := range o.LargestGroup {
		c.LargestGroup[model] = max(c.LargestGroup[model], n)
	}
}

func addTimes[K comparable, N int | int64](to, from map[K]N, times int) {
	for k, n := range from {
		to[k] += n * N(times)
	}
}

// Fragmentation is the share of a model's free memory slices, 0 to 1, that the largest free placements of its GPUs
// cannot use. It is 0 if no slice is free, and 0.75 for a GPU of which only the slices 1, 3, 5 and 7 are free.
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
	for p, times := range Distinct(idle) {
		total.add(p.Count(nil), times)
	}
	return total
}

// Distinct iterates over the pool of the first node of each shape, and the number of pools that have the shape. Pools
// with too many slices for a shape are on their own.
func Distinct(pools []Pool) iter.Seq2[Pool, int] {
	return func(yield func(Pool, int) bool) {
		first, times := map[[32]*Shape]Pool{}, map[[32]*Shape]int{}
		for _, p := range pools {
			key, ok := p.Shape()
			if !ok && !yield(p, 1) {
				return
			} else if ok {
				if times[key] == 0 || p.Node < first[key].Node {
					first[key] = p
				}
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

// Count counts the published devices of one pool, and the placements with those that Samples.Add added; held lists its
// allocated devices.
func (p Pool) Count(held []string) DeviceCounts {
	left, states := p.states(held)
	t := newCounts()
	groups := map[string]bool{} // Models with published groups.
	linked := map[string]int{}  // Free GPUs by the largest group of which they are a part.
	for d, kind := range p.published() {
		if kind.Type == gpu.KindMonitor {
			continue
		}
		state := states[d.Name]
		t.Devices[KindState{kind, state}]++
		if state == Free && (kind.Type == gpu.KindGPU || kind.Type == gpu.KindGroup) {
			t.LargestGroup[kind.Product] = max(t.LargestGroup[kind.Product], kind.GPUs)
		}
		groups[kind.Product] = groups[kind.Product] || kind.Type == gpu.KindGroup
		if kind.Type != gpu.KindGPU || state != Free {
			continue
		}
		if group := Text(d, "nvlinkGroup"); group != "" {
			linked[kind.Product+"\x00"+group]++
		}
	}
	for key, n := range linked {
		if model, _, _ := strings.Cut(key, "\x00"); !groups[model] {
			t.LargestGroup[model] = max(t.LargestGroup[model], 1<<(bits.Len(uint(n))-1))
		}
	}
	grids := p.grids()
	for set, b := range p.boards(left, states, grids) {
		if b.elsewhere() {
			continue
		}
		for kind, n := range b.placements {
			t.FreePlacements[kind] += n
		}
		for name, n := range left[set] {
			if strings.HasPrefix(name, sliceCounter) {
				t.FreeSlices[b.model] += max(n.Value(), 0)
			}
		}
		t.UsableSlices[b.model] += b.largest
	}
	return t
}

// Room returns the states of the pool's devices by name, and the memory slices of the largest partition or whole GPU
// that a claim can get, by counter set. held lists the allocated devices.
func (p Pool) Room(held []string) (states map[string]State, largest map[string]int64) {
	left, states := p.states(held)
	largest = map[string]int64{}
	for set, b := range p.boards(left, states, p.grids()) {
		if !b.elsewhere() {
			largest[set] = b.largest
		}
	}
	return states, largest
}

// boards returns the GPUs with counters, by counter set.
func (p Pool) boards(left Counters, states map[string]State, grids map[string]*grid) map[string]*board {
	out := map[string]*board{}
	for d, kind := range p.Devices() {
		if kind.Type != gpu.KindGPU && kind.Type != gpu.KindMIG {
			continue
		}
		for _, c := range d.ConsumesCounters {
			if memorySlices(c.Counters) > 0 {
				if out[c.CounterSet] == nil {
					out[c.CounterSet] = &board{model: kind.Product, placements: map[Kind]int{}}
				}
				out[c.CounterSet].see(kind, states[d.Name], c, left)
			}
		}
	}
	for set, b := range out {
		if grid := grids[b.model]; grid != nil {
			b.placements = grid.free(left[set])
			for kind, n := range b.placements {
				if n > 0 {
					b.largest = max(b.largest, grid.profiles[kind].size)
				}
			}
		}
	}
	return out
}

// board is a GPU with a counter set.
type board struct {
	model string
	// largest is the number of memory slices of the largest free device.
	largest int64
	// placements counts the published free ones.
	placements map[Kind]int
	// whole is the state of the whole GPU, empty if it is not published. unhealthy means that a partition is unhealthy
	// or cordoned. grouped means that another counter set blocks a device: a claim holds a group.
	whole              State
	unhealthy, grouped bool
}

func (b *board) see(kind Kind, state State, c resourceapi.DeviceCounterConsumption, left Counters) {
	if kind.Type == gpu.KindGPU {
		b.whole = state
	}
	switch {
	case state == Unhealthy || state == Cordoned:
		b.unhealthy = true
	case state == blocked && len(left.lacking(c)) == 0:
		b.grouped = true
	case state == Free:
		b.largest = max(b.largest, memorySlices(c.Counters))
		if kind.Type == gpu.KindMIG {
			b.placements[kind]++
		}
	}
}

// elsewhere reports whether no claim can get a part of the GPU. A partition that is only withdrawn has a healthy GPU.
func (b *board) elsewhere() bool {
	return b.grouped || b.whole == Unhealthy || b.whole == Cordoned || b.whole == "" && b.unhealthy
}

func (p Pool) states(held []string) (left Counters, states map[string]State) {
	left = p.counters()
	tainted, taken := map[string]State{}, sets.New(held...)
	for _, s := range p.Slices {
		for _, u := range s.Unhealthy {
			name := s.Shape.Spec.Devices[u.Device].Name
			if u.Taint.Key == wire.UnhealthyTaint {
				tainted[name] = Unhealthy
			} else {
				tainted[name] = cmp.Or(tainted[name], Cordoned)
			}
		}
	}
	for d := range p.Devices() {
		if taken.Has(d.Name) {
			left.Take(d)
		}
	}
	states = map[string]State{}
	for d := range p.Devices() {
		switch {
		case taken.Has(d.Name):
			states[d.Name] = Allocated
		case tainted[d.Name] != "":
			states[d.Name] = tainted[d.Name]
		case len(left.Lacking(d)) > 0:
			states[d.Name] = blocked
		default:
			states[d.Name] = Free
		}
	}
	return left, states
}
