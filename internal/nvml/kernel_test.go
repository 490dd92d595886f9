// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"os"
	"path/filepath"
	"testing"

	"gpu-dra-driver/internal/nvml"
)

// TestKernel_AnyListThere_IsNotAbsent has lists that exist, that do not, and that cannot be read.
func TestKernel_AnyListThere_IsNotAbsent(t *testing.T) {
	const gpu = "0000:1b:00.0"
	for name, c := range map[string]struct {
		there          []string
		driver, hasGPU bool
	}{
		"nothing":              {nil, false, false},
		"the driver in /proc":  {[]string{"proc/driver/nvidia/gpus/"}, true, false},
		"the driver in /sys":   {[]string{"sys/module/nvidia/"}, true, false},
		"the GPU in /proc":     {[]string{"proc/driver/nvidia/gpus/" + gpu + "/"}, true, true},
		"the GPU in /sys":      {[]string{"sys/module/nvidia/", "sys/bus/pci/drivers/nvidia/" + gpu}, true, true},
		"another GPU":          {[]string{"proc/driver/nvidia/gpus/0000:1c:00.0/"}, true, false},
		"/proc is unreadable":  {[]string{"proc"}, true, true},
		"/sys is unreadable":   {[]string{"sys"}, true, true},
		"a driver for vfio":    {[]string{"sys/bus/pci/drivers/vfio-pci/" + gpu}, false, false},
		"another module of it": {[]string{"sys/module/nvidia_uvm/"}, false, false},
	} {
		root := t.TempDir()
		for _, path := range c.there {
			dir := filepath.Join(root, path)
			if path[len(path)-1] != '/' { // A file: below it the error is another than "not found".
				dir = filepath.Dir(dir)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if path[len(path)-1] != '/' {
				if err := os.WriteFile(filepath.Join(root, path), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		k := nvml.Kernel{ProcRoot: filepath.Join(root, "proc"), SysRoot: filepath.Join(root, "sys")}
		if driver, has := k.HasDriver(), k.HasGPU(gpu); driver != c.driver || has != c.hasGPU {
			t.Errorf("%s: driver %v, GPU %v; want %v, %v", name, driver, has, c.driver, c.hasGPU)
		}
	}
}
