// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

func TestHolders_IdleGPUs_NamesWhatKeepsTheirModeFromASwitch(t *testing.T) {
	proc, sys := t.TempDir(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	process(t, proc, 20, "nvidia-persiste", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2")
	process(t, proc, 21, "plugin-itself", "/dev/nvidia0")
	process(t, proc, 22, "dra-kubelet-plu", "/dev/nvidia0")
	must(os.Symlink("21", filepath.Join(proc, "self")))
	hopper, ampere := gpu.MIG{Capable: true, Switchable: true}, gpu.MIG{Capable: true}
	on := hopper
	on.Enabled = true
	held := &records{plans: []plan.Plan{{Devices: []plan.Device{{PCIAddress: "b"}, {PCIAddress: "a", Admin: true}}}}}
	u := NewUsage(NewKubelet(""), UsageOptions{ProcRoot: proc, Records: held, Scans: scanned(
		gpu.GPU{PCIAddress: "a", Minor: 0, MIG: hopper}, gpu.GPU{PCIAddress: "b", Minor: 1, MIG: hopper}, gpu.GPU{PCIAddress: "c", Minor: 2, MIG: ampere},
		gpu.GPU{PCIAddress: "d", Minor: 3, MIG: on}, gpu.GPU{PCIAddress: "e", Minor: 4},
	)})
	h := NewHolders(u, HoldersOptions{SysRoot: sys, AllowReset: true, Changed: notify.NewTrigger()})
	want := func(want map[string]string) {
		t.Helper()
		must(h.check(t.Context()))
		fired := false
		select {
		case <-h.o.Changed:
			fired = true
		default:
		}
		before := h.Holders()
		if diff := cmp.Diff(want, before); diff != "" || fired != (len(want) > 0) {
			t.Errorf("changed %v (-want +got):\n%s", fired, diff)
		}
	}
	want(map[string]string{})
	process(t, proc, 30, "nv-hostengine", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia4")
	want(map[string]string{}) // It may be a short call.
	want(map[string]string{"a": "nv-hostengine", "c": "nv-hostengine"})
	must(os.MkdirAll(filepath.Join(sys, "module/nvidia_drm/parameters"), 0o755))
	must(os.WriteFile(filepath.Join(sys, "module/nvidia_drm/parameters/modeset"), []byte("Y\n"), 0o644))
	must(os.RemoveAll(filepath.Join(proc, "30")))
	must(h.check(t.Context())) // The holders change.
	<-h.o.Changed
	want(map[string]string{"c": DRM}) // Only a reset needs the module's end.
	held.err = errors.New("disk")
	if err := h.check(t.Context()); !errors.Is(err, held.err) {
		t.Errorf("with unreadable records: %v", err)
	}
}
