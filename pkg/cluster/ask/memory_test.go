// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/pool"
)

// TestEvaluator_ManyLargeSelectors_LittleMemory evaluates selectors of the API's largest size, each of them once.
func TestEvaluator_ManyLargeSelectors_LittleMemory(t *testing.T) {
	all, err := slicetest.Node("t4-1", "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	one := (&pool.Shapes{}).Convert(all[0])
	e := NewEvaluator()
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := used()
	const selectors = 3000
	for i := range selectors {
		expression := fmt.Sprintf("device.driver == '%d %s'", i, strings.Repeat("x", 10000))
		if ok, err := e.Matches(t.Context(), expression, Published(one.Shape, 0)); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if grown := used() - before; grown > 20<<20 {
		t.Errorf("%d selectors of 10 kB left %d MB in memory, want at most 20", selectors, grown>>20)
	}
	runtime.KeepAlive(e)
}
