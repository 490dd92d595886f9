// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"runtime"
	"sync"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestRoot_Made_LeavesHostUnchanged checks signal handlers, because two Go runtimes share the process.
func TestRoot_Made_LeavesHostUnchanged(t *testing.T) {
	lib := initialised(t, Root(t, "hgx-h100", nil))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				for i := range 8 {
					d, ret := lib.DeviceGetHandleByIndex(i)
					if ret != gonvml.SUCCESS {
						t.Errorf("GPU %d: %v", i, ret)
						return
					}
					if _, ret := d.GetUUID(); ret != gonvml.SUCCESS {
						t.Errorf("GPU %d: %v", i, ret)
					}
				}
				if !recovers() {
					t.Error("a nil dereference was not recovered from")
				}
				runtime.GC()
			}
		})
	}
	wg.Wait()
}

func recovers() (recovered bool) {
	defer func() { recovered = recover() != nil }()
	var p *int
	*p++
	return false
}
