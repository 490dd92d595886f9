// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/layouttest"
)

// TestAllocate_SlicesTwice_NothingUntilOneIsLeft has slices that were created twice, because an API server lagged. The
// scheduler can see all of them, or as many as the pool has, with one twice and another one not yet.
func TestAllocate_SlicesTwice_NothingUntilOneIsLeft(t *testing.T) {
	s := newScheduler(t, hgx(8, layouttest.H100()), shareable)
	// The slice of monitor devices is another pool.
	once := slices.DeleteFunc(slices.Clone(s.slices), func(o *resourceapi.ResourceSlice) bool { return o.Spec.Pool.Name != "n1/gpu" })
	if len(once) < 2 || len(once) == len(s.slices) {
		t.Fatalf("%d of %d slices are of the pool", len(once), len(s.slices))
	}
	again := func(i int) *resourceapi.ResourceSlice {
		two := *once[i]
		two.Name += "-again"
		return &two
	}
	want := func(devices int) {
		t.Helper()
		for _, c := range []*resourceapi.ResourceClaim{s.claim("gpu.nvidia.com", 1), s.claim("mig.nvidia.com", 1), s.group(2)} {
			if got, _ := s.results(c); len(got) != devices {
				t.Errorf("%d slices: %v was allocated, want %d devices", len(s.slices), got, devices)
			}
		}
	}
	all := slices.Clone(once)
	for i := range once {
		all = append(all, again(i))
		s.slices = append(slices.Clone(once), again(i))
		want(0)
		for missing := range once {
			if missing != i {
				s.slices = append(slices.Delete(slices.Clone(once), missing, missing+1), again(i))
				want(0)
			}
		}
	}
	s.slices = all
	want(0)
	s.slices = once
	want(1)
}
