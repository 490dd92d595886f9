// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/pkg/cluster/pool"
)

func TestRecent_GraceOver_ShapeForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := recent{grace: time.Minute}
		a := pool.Pool{Node: "a", Slices: []*pool.Slice{{Shape: &pool.Shape{}}}}
		b := pool.Pool{Node: "b", Slices: []*pool.Slice{{Shape: &pool.Shape{}}}}
		want := func(now []pool.Pool, pools int, again time.Duration) {
			t.Helper()
			all, wait := r.with(now)
			if len(all) != pools || wait != again {
				t.Errorf("%d pools, again in %v; want %d, %v", len(all), wait, pools, again)
			}
		}
		want([]pool.Pool{a, b}, 2, 0)
		time.Sleep(40 * time.Second)
		want([]pool.Pool{b}, 2, 20*time.Second)
		want([]pool.Pool{a, b}, 2, 0)
		want([]pool.Pool{b}, 2, time.Minute)
		time.Sleep(time.Minute)
		want([]pool.Pool{b}, 1, 0)
	})
}
