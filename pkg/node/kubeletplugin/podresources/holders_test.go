// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

var profiles = []gpu.Profile{{Name: "1g.10gb"}}

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
	hopper, ampere := gpu.MIG{Capable: true, Switchable: true, Profiles: profiles}, gpu.MIG{Capable: true, Profiles: profiles}
	on := hopper
	on.Enabled = true
	held := &records{plans: []plan.Plan{{Devices: []plan.Device{{PCIAddress: "b"}, {PCIAddress: "a", Admin: true}}}}}
	u := NewUsage(NewKubelet(""), UsageOptions{ProcRoot: proc, Scans: scanned(
		gpu.GPU{PCIAddress: "a", Minor: 0, MIG: hopper}, gpu.GPU{PCIAddress: "b", Minor: 1, MIG: hopper}, gpu.GPU{PCIAddress: "c", Minor: 2, MIG: ampere},
		gpu.GPU{PCIAddress: "d", Minor: 3, MIG: on}, gpu.GPU{PCIAddress: "e", Minor: 4},
	)})
	h := NewHolders(u, HoldersOptions{Records: held, Sharing: sharing.Node{}, SysRoot: sys, AllowReset: true,
		Changed: notify.NewTrigger()})
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

// asked are the placements that a node publishes of each profile.
type asked struct {
	sharing.Node
	placements sharing.Placements
}

func (a *asked) Placements(gpu.GPU, string) sharing.Placements { return a.placements }

// TestHolders_PartitionsPublished_SearchedAtOnce: the first slices with a GPU's partitions know its holder, and without
// partitions no process is read.
func TestHolders_PartitionsPublished_SearchedAtOnce(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, 30, "nv-hostengine", "/dev/nvidia0")
	for placements, searched := range map[sharing.Placements]bool{
		sharing.AllPlacements: true, sharing.EndingPlacements: true, sharing.EndingAllPlacements: true, sharing.OnePlacement: true,
		sharing.EndingOnePlacement: true, sharing.LaterPlacements: false, sharing.NoPlacement: false,
	} {
		source := &asked{placements: sharing.LaterPlacements}
		u := NewUsage(NewKubelet(""), UsageOptions{ProcRoot: proc, Scans: scanned(gpu.GPU{
			PCIAddress: "a", MIG: gpu.MIG{Capable: true, Switchable: true, Profiles: profiles},
		})})
		h := NewHolders(u, HoldersOptions{Records: &records{}, Sharing: source, SysRoot: t.TempDir(), Changed: notify.NewTrigger()})
		look := func() map[string]string {
			t.Helper()
			h.mu.Lock()
			defer h.mu.Unlock()
			if err := h.check(t.Context()); err != nil {
				t.Fatal(err)
			}
			return h.now
		}
		if now := look(); len(now) > 0 || h.processes != nil {
			t.Errorf("%v: without partitions %v, %v", placements, now, h.processes)
		}
		source.placements = placements
		if now := h.Holders(); (now["a"] == "nv-hostengine") != searched {
			t.Errorf("%v: the first slices with partitions know %v", placements, now)
		}
		source.placements = sharing.LaterPlacements
		if now := look(); len(now) > 0 {
			t.Errorf("%v: without partitions again %v", placements, now)
		}
	}
}

// TestHolders_ProcessDidNotRun_FilesNotReadAgain changes the files of a process with and without its stat file.
func TestHolders_ProcessDidNotRun_FilesNotReadAgain(t *testing.T) {
	proc := t.TempDir()
	ran := func(ticks int) {
		t.Helper()
		stat := fmt.Sprintf("30 (agent) S 1 30 30 0 -1 4194560 0 0 0 0 %d 0 0 0 20 0 1 0 100 0 0", ticks)
		if err := os.WriteFile(filepath.Join(proc, "30/stat"), []byte(stat), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	process(t, proc, 30, "agent")
	ran(1)
	u := NewUsage(NewKubelet(""), UsageOptions{ProcRoot: proc, Scans: scanned(gpu.GPU{
		PCIAddress: "a", MIG: gpu.MIG{Capable: true, Switchable: true, Profiles: profiles},
	})})
	h := NewHolders(u, HoldersOptions{Records: &records{}, Sharing: sharing.Node{}, SysRoot: t.TempDir(), Changed: notify.NewTrigger()})
	want := func(when, name string) {
		t.Helper()
		for range 2 {
			if err := h.check(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := h.Holders()["a"]; got != name {
			t.Errorf("%s: held by %q, want %q", when, got, name)
		}
	}
	want("before", "")
	process(t, proc, 30, "agent", "/dev/nvidia0")
	want("its stat file is the same", "")
	h.forget = time.Time{}
	want("ten minutes later", "agent")
	if err := os.Remove(filepath.Join(proc, "30/fd/0")); err != nil {
		t.Fatal(err)
	}
	want("it closed the file, and its stat file is the same", "agent")
	ran(2)
	want("it ran", "")
	if err := os.Symlink("/dev/nvidia0", filepath.Join(proc, "30/fd/0")); err != nil {
		t.Fatal(err)
	}
	ran(3)
	want("it ran, and opened the file", "agent")
	if err := os.RemoveAll(filepath.Join(proc, "30")); err != nil {
		t.Fatal(err)
	}
	want("it ended", "")
	if len(h.processes) > 0 {
		t.Errorf("it remembers %v", h.processes)
	}
}
