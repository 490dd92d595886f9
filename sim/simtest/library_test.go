// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestLibraryThroughGoNVML(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	r.Use(t)
	lib := gonvml.New(gonvml.WithLibraryPath(r.Library))
	if ret := lib.Init(); ret != gonvml.SUCCESS {
		t.Fatalf("Init: %v", ret)
	}
	t.Cleanup(func() { lib.Shutdown() })
	n, ret := lib.DeviceGetCount()
	if ret != gonvml.SUCCESS || n != 8 {
		t.Fatalf("count: %d %v", n, ret)
	}
	for i := range n {
		d, ret := lib.DeviceGetHandleByIndex(i)
		if ret != gonvml.SUCCESS {
			t.Fatal(ret)
		}
		name, ret := d.GetName()
		t.Log(name, ret)
		m, ret := d.GetMemoryInfo_v2()
		t.Log(m, ret)
		p, ret := d.GetPciInfo()
		t.Log(p, ret)
	}
}
