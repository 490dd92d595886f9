// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"gpu-dra-driver/pkg/fleet"
)

func TestRecent_GraceOver_ShapeForgotten(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	r := recent{grace: time.Minute, clock: clock}
	a := fleet.Pool{Node: "a", Slices: []*fleet.Slice{{Shape: &fleet.Shape{}}}}
	b := fleet.Pool{Node: "b", Slices: []*fleet.Slice{{Shape: &fleet.Shape{}}}}
	want := func(now []fleet.Pool, pools int, again time.Duration) {
		t.Helper()
		all, wait := r.with(now)
		if len(all) != pools || wait != again {
			t.Errorf("%d pools, again in %v; want %d, %v", len(all), wait, pools, again)
		}
	}
	want([]fleet.Pool{a, b}, 2, 0)
	clock.SetTime(time.Unix(40, 0))
	want([]fleet.Pool{b}, 2, 20*time.Second)
	want([]fleet.Pool{a, b}, 2, 0)
	want([]fleet.Pool{b}, 2, time.Minute)
	clock.SetTime(time.Unix(100, 0))
	want([]fleet.Pool{b}, 1, 0)
}
