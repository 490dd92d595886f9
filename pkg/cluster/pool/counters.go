// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Counters are the remaining values of a pool's counters, by set and name.
type Counters map[string]map[string]resource.Quantity

// counters returns the pool's counters without any allocation.
func (p Pool) counters() Counters {
	out := Counters{}
	for _, s := range p.Slices {
		out.Add(s.Shape.Spec.SharedCounters)
	}
	return out
}

// Add adds counter sets with their full values.
func (c Counters) Add(sets []resourceapi.CounterSet) {
	for _, set := range sets {
		c[set.Name] = make(map[string]resource.Quantity, len(set.Counters))
		for name, n := range set.Counters {
			c[set.Name][name] = n.Value.DeepCopy() // A large value shares memory, which Sub changes.
		}
	}
}

// Take takes what an allocated device consumes. Like the scheduler's allocator it ignores counters that are not
// published.
func (c Counters) Take(d resourceapi.Device) {
	for _, use := range d.ConsumesCounters {
		for name, n := range use.Counters {
			if left, ok := c[use.CounterSet][name]; ok {
				left.Sub(n.Value)
				c[use.CounterSet][name] = left
			}
		}
	}
}

// Lacking returns the counters that a device needs and that are not left, as set/counter.
func (c Counters) Lacking(d resourceapi.Device) (out []string) {
	for _, use := range d.ConsumesCounters {
		out = append(out, c.lacking(use)...)
	}
	return out
}

func (c Counters) lacking(use resourceapi.DeviceCounterConsumption) (out []string) {
	for name, n := range use.Counters {
		if left, ok := c[use.CounterSet][name]; !ok || left.Cmp(n.Value) < 0 {
			out = append(out, use.CounterSet+"/"+name)
		}
	}
	return out
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
