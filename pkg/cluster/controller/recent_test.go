// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/pkg/cluster/fleet"
)

func TestRecent_GraceOver_ShapeForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := recent{grace: time.Minute}
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
		time.Sleep(40 * time.Second)
		want([]fleet.Pool{b}, 2, 20*time.Second)
		want([]fleet.Pool{a, b}, 2, 0)
		want([]fleet.Pool{b}, 2, time.Minute)
		time.Sleep(time.Minute)
		want([]fleet.Pool{b}, 1, 0)
	})
}
