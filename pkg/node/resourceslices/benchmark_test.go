// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/wire"
)

// with499OtherNodes adds the slices of 499 nodes like it.
func (s *scheduler) with499OtherNodes() *scheduler {
	own := slices.Clone(s.slices)
	for n := range 499 {
		name := fmt.Sprintf("other-%d", n)
		for _, slice := range own {
			other := *slice
			other.Spec.NodeName, other.Spec.Pool.Name = &name, wire.PoolOf(name, slice.Spec.Devices)
			s.slices = append(s.slices, &other)
		}
	}
	return s
}

// allocationTime is how long the scheduler takes for a claim, which is released again.
func (s *scheduler) allocationTime(c *resourceapi.ResourceClaim, devices int) time.Duration {
	s.t.Helper()
	shares := len(s.shares)
	got := s.allocate(c)
	if len(got) != devices {
		s.t.Fatalf("%v was allocated", got)
	}
	for len(s.shares) > shares {
		s.unshare(shares)
	}
	s.release(got...)
	return s.took
}

func median[T cmp.Ordered](all []T) T {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}

// ratio is the median of the ratios of measurements one after the other, which a machine whose speed changes disturbs least.
func ratio(all, floor []time.Duration) float64 {
	var out []float64
	for i := range all {
		out = append(out, float64(all[i])/float64(floor[i]))
	}
	return median(out)
}

// BenchmarkAllocate measures the scheduler on one node, for one partition: with that node's slices alone and with those
// of 500 nodes. The second may take 2.5 times as long.
func BenchmarkAllocate(b *testing.B) {
	one := newScheduler(b, hgx(8, layouttest.H100()), shareable)
	many := newScheduler(b, hgx(8, layouttest.H100()), shareable).with499OtherNodes()
	measure := func(s *scheduler) time.Duration {
		return s.allocationTime(s.claim("mig.nvidia.com", 1, profile("1g.10gb")), 1)
	}
	measure(one)
	measure(many)
	var alone, among []time.Duration
	for b.Loop() {
		alone, among = append(alone, measure(one)), append(among, measure(many))
	}
	a, m := median(alone), median(among)
	b.ReportMetric(float64(a.Microseconds()), "µs-alone")
	b.ReportMetric(float64(m.Microseconds()), "µs-among-500")
	x := ratio(among, alone)
	b.ReportMetric(x, "x")
	if x > 2.5 {
		b.Errorf("%v among 500 nodes, %v alone: more than 2.5 ×", m, a)
	}
}

// BenchmarkAllocateGroup measures the scheduler on one of 500 nodes. On an idle node, a group of four may take 1.5
// times as long as one GPU. On a partly used node it must be faster than four GPUs by matchAttribute.
func BenchmarkAllocateGroup(b *testing.B) {
	idle := newScheduler(b, hgx(8, layouttest.H100()), shareable).with499OtherNodes()
	busy := newScheduler(b, hgx(8, layouttest.H100()), shareable).with499OtherNodes()
	for _, c := range []*resourceapi.ResourceClaim{busy.claim("gpu.nvidia.com", 1), busy.claim("gpu.nvidia.com", 1), busy.claim("mig.nvidia.com", 1, profile("1g.10gb"))} {
		if len(busy.allocate(c)) != 1 {
			b.Fatal("nothing was allocated")
		}
	}
	var ones, groups, crowded, matched []time.Duration
	for b.Loop() {
		ones = append(ones, idle.allocationTime(idle.claim("gpu.nvidia.com", 1), 1))
		groups = append(groups, idle.allocationTime(idle.group(4), 1))
		crowded = append(crowded, busy.allocationTime(busy.group(4), 1))
		matched = append(matched, busy.allocationTime(linked(busy.claim("gpu.nvidia.com", 4)), 4))
	}
	one, group, crowd, match := median(ones), median(groups), median(crowded), median(matched)
	b.ReportMetric(float64(one.Microseconds()), "µs-GPU")
	b.ReportMetric(float64(group.Microseconds()), "µs-group")
	x := ratio(groups, ones)
	b.ReportMetric(x, "x-GPU")
	b.ReportMetric(float64(crowd.Microseconds()), "µs-group-busy")
	b.ReportMetric(float64(match.Microseconds()), "µs-matched-busy")
	if x > 1.5 {
		b.Errorf("a group of four takes %v, one GPU %v: more than 1.5 ×", group, one)
	}
	if ratio(crowded, matched) >= 1 {
		b.Errorf("a group of four takes %v on a busy node, four GPUs by matchAttribute %v", crowd, match)
	}
}
