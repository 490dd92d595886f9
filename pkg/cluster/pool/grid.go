// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// grid knows all placements of a model's MIG profiles by one published placement of each. Nodes with the setting Auto
// publish no more of a profile until an object asks for it.
//
// A partition starts at a multiple of its memory slices, and its compute slices end with the GPU's. A compute slice
// lies beside slices/compute memory slices, rounded down: a GPU can have a memory slice more, such as 8 beside 7. The
// tests compare this with the placements that NVML returns for the boards of the simulator.
type grid struct {
	profiles map[Kind]partition
	// slices and compute are the GPU's memory slices and compute slices.
	slices, compute int64
}

// partition is the need of a MIG profile, in slices; other are its other counters.
type partition struct {
	size, compute int64
	other         map[string]int64
}

// grids returns the grids of the models of which the pool publishes a partition as large as the GPU: only then the
// compute slices of the GPU are known.
func (p Pool) grids() map[string]*grid {
	all, full := map[string]*grid{}, p.counters()
	for d, kind := range p.Devices() {
		compute := computeSlices(kind.Profile)
		if kind.Type != gpu.KindMIG || compute == 0 {
			continue
		}
		g := all[kind.Product]
		if g == nil {
			g = &grid{profiles: map[Kind]partition{}}
			all[kind.Product] = g
		}
		if _, known := g.profiles[kind]; known {
			continue
		}
		for _, use := range d.ConsumesCounters {
			size := memorySlices(use.Counters)
			if size <= 0 {
				continue
			}
			g.profiles[kind] = partition{size, compute, otherCounters(use)}
			if counted(full[use.CounterSet]) == size {
				g.slices, g.compute = size, max(g.compute, compute)
			}
		}
	}
	for model, g := range all {
		if g.slices == 0 {
			delete(all, model)
		}
	}
	return all
}

// OnDemand reports whether the pool has fewer placements of a MIG profile than its GPUs have. With the setting Auto a
// node publishes one of a profile that no object asks for, and those of others on some of its GPUs.
func (p Pool) OnDemand() bool {
	published, gpus := map[Kind]int{}, map[string]int{}
	for d, kind := range p.Devices() {
		published[kind]++
		if kind.Type == gpu.KindGPU && Text(d, wire.MIGLayoutAttribute) != "" {
			gpus[kind.Product]++
		}
	}
	for model, g := range p.grids() {
		for kind, need := range g.profiles {
			if published[kind] < len(g.starts(need))*max(gpus[model], 1) {
				return true
			}
		}
	}
	return false
}

// starts returns the first memory slices of a partition's placements.
func (g *grid) starts(p partition) (out []int64) {
	unit := g.slices / g.compute
	for start := int64(0); start+p.size <= g.slices && start+p.compute*unit <= g.compute*unit; start += p.size {
		out = append(out, start)
	}
	return out
}

// free counts the placements at which a GPU with these counters left has room.
func (g *grid) free(left map[string]resource.Quantity) map[Kind]int {
	out := map[Kind]int{}
	for kind, p := range g.profiles {
		out[kind] = 0
		for _, start := range g.starts(p) {
			if p.fits(left, start) {
				out[kind]++
			}
		}
	}
	return out
}

func (p partition) fits(left map[string]resource.Quantity, start int64) bool {
	for name, n := range p.other {
		if has := left[name]; has.CmpInt64(n) < 0 {
			return false
		}
	}
	for i := start; i < start+p.size; i++ {
		if has := left[sliceCounter+strconv.FormatInt(i, 10)]; has.CmpInt64(1) < 0 {
			return false
		}
	}
	return true
}

func otherCounters(use resourceapi.DeviceCounterConsumption) map[string]int64 {
	out := map[string]int64{}
	for name, c := range use.Counters {
		if !strings.HasPrefix(name, sliceCounter) {
			out[name] = c.Value.Value()
		}
	}
	return out
}

func counted(counters map[string]resource.Quantity) (slices int64) {
	for name := range counters {
		if strings.HasPrefix(name, sliceCounter) {
			slices++
		}
	}
	return slices
}

// computeSlices returns the number before the g of a profile such as 3g.40gb, or 0.
func computeSlices(profile string) int64 {
	number, _, _ := strings.Cut(profile, "g.")
	n, err := strconv.ParseInt(number, 10, 8)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
