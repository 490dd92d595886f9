// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
)

type records struct {
	plans []plan.Plan
	err   error
}

func (r *records) Held() ([]plan.Plan, bool, error) { return r.plans, true, r.err }

func scanned(gpus ...gpu.GPU) *inventory.Latest {
	scans := inventory.NewLatest()
	scans.Set(gpu.Snapshot{GPUs: gpus})
	return scans
}

// process makes a process of a /proc tree that has files open.
func process(t *testing.T, proc string, pid int, comm string, open ...string) {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "comm"), []byte(comm+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, target := range open {
		if err := os.Symlink(target, filepath.Join(dir, "fd", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUsage_OpenDeviceNodes_NameTheProcess(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, 1, "init", "/dev/null")
	process(t, proc, 20, "nvidia-persiste", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3")
	process(t, proc, 21, "dra-kubelet-plu", "/dev/nvidia0")
	if err := os.Symlink("21", filepath.Join(proc, "self")); err != nil {
		t.Fatal(err)
	}
	process(t, proc, 30, "python3", "socket:[1]", "/run/sim/dev/nvidia1")
	process(t, proc, 35, "nvidia-cuda-mps", "/dev/nvidia2")
	process(t, proc, 40, "cat", "/home/me/nvidia0", "/dev/nvidiactl")
	process(t, proc, 45, "any-agent", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2")
	process(t, proc, 46, "site-agent-with", "/dev/nvidia0")
	if err := os.Mkdir(filepath.Join(proc, "55"), 0o755); err != nil { // It ended while it was looked at.
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(proc, "sys"), 0o755); err != nil {
		t.Fatal(err)
	}
	held := &records{plans: []plan.Plan{{Devices: []plan.Device{{PCIAddress: "b"}}}}}
	gpus := []gpu.GPU{{PCIAddress: "a", Minor: 0}, {PCIAddress: "b", Minor: 1}, {PCIAddress: "c", Minor: 2}}
	scans := scanned(gpus...)
	u := NewUsage(NewKubelet(""), UsageOptions{
		ProcRoot: proc, Ignored: []string{"site-agent-with-a-long-name"},
		Scans: scans, Records: held,
	})
	for name, tc := range map[string]struct {
		devices []plan.Device
		want    string
	}{
		"a process has it open":                       {[]plan.Device{{PCIAddress: "b", Minor: 1}}, "process 30 (python3, with nvidia1 open)"},
		"one of several":                              {[]plan.Device{{PCIAddress: "a"}, {PCIAddress: "b"}}, "process 30 (python3, with nvidia1 open)"},
		"today's minor counts, not the plan's":        {[]plan.Device{{PCIAddress: "c", Minor: 1}}, ""},
		"a GPU that is gone keeps the plan's":         {[]plan.Device{{PCIAddress: "gone", Minor: 1}}, "process 30 (python3, with nvidia1 open)"},
		"only agents":                                 {[]plan.Device{{PCIAddress: "a"}}, ""},
		"watching holds nothing up":                   {[]plan.Device{{PCIAddress: "b", Admin: true}}, ""},
		"only an MPS daemon":                          {[]plan.Device{{PCIAddress: "c"}}, ""},
		"a share, whose device others have open":      {[]plan.Device{{PCIAddress: "b", Share: plan.Share{MemoryBytes: 1}}}, ""},
		"an unknown claim is on what no other claims": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := u.OpenedBy(t.Context(), tc.devices); err != nil || got != tc.want {
				t.Errorf("%q, %v; want %q", got, err, tc.want)
			}
		})
	}
	process(t, proc, 39, "dra-kubelet-plu", "/dev/nvidia0")
	if got, err := u.OpenedBy(t.Context(), []plan.Device{{PCIAddress: "a"}}); err != nil || !strings.Contains(got, "process 39") {
		t.Errorf("a process with the plugin's name: %q, %v", got, err)
	}
	if err := os.RemoveAll(filepath.Join(proc, "39")); err != nil {
		t.Fatal(err)
	}
	process(t, proc, 41, "train", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia-uvm")
	if got, err := u.OpenedBy(t.Context(), []plan.Device{{PCIAddress: "c"}}); err != nil || !strings.Contains(got, "train") {
		t.Errorf("a process with a compute context on every GPU: %q, %v", got, err)
	}
	scans.Set(gpu.Snapshot{GPUs: gpus[:1]})
	if got, err := u.OpenedBy(t.Context(), []plan.Device{{PCIAddress: "a"}}); err != nil || !strings.Contains(got, "train") {
		t.Errorf("the node's only GPU: %q, %v", got, err)
	}
	if err := os.RemoveAll(filepath.Join(proc, "41")); err != nil {
		t.Fatal(err)
	}
	if got, err := u.OpenedBy(t.Context(), []plan.Device{{PCIAddress: "a"}}); err != nil || !strings.Contains(got, "any-agent") {
		t.Errorf("a process with the node's only GPU open: %q, %v", got, err)
	}
	scans.Set(gpu.Snapshot{GPUs: gpus[:2]})
	held.plans = nil
	if got, err := u.OpenedBy(t.Context(), nil); err != nil || !strings.Contains(got, "nvidia1") {
		t.Errorf("an unknown claim may be on any GPU: %q, %v", got, err)
	}
	for _, unread := range []gpu.Snapshot{{}, {GPUs: gpus[:1], Problems: []gpu.Problem{{PCIAddress: "b", Index: 1}}}} {
		scans.Set(unread)
		if got, err := u.OpenedBy(t.Context(), nil); err != nil || !strings.Contains(got, "nvidia1") {
			t.Errorf("an unknown claim may be on a GPU that no scan shows: %q, %v", got, err)
		}
	}
	held.err = errors.New("disk")
	if _, err := u.OpenedBy(t.Context(), nil); err == nil {
		t.Error("the held devices are unknown, but there is no error")
	}
	u.o.ProcRoot = filepath.Join(proc, "absent")
	if _, err := u.OpenedBy(t.Context(), []plan.Device{{PCIAddress: "a"}}); err == nil {
		t.Error("no process can be seen, and no error says so")
	}
}

func TestUsage_IgnoredProcessesAndAdminAccess_DoNotCount(t *testing.T) {
	proc := t.TempDir()
	open := func(pid, comm, device string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(proc, pid, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(comm+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(device, filepath.Join(proc, pid, "fd", "3")); err != nil {
			t.Fatal(err)
		}
	}
	u := NewUsage(NewKubelet(""), UsageOptions{
		ProcRoot: proc,
		Scans:    scanned(gpu.GPU{PCIAddress: "0000:1b:00.0", Minor: 1}, gpu.GPU{PCIAddress: "0000:43:00.0", Minor: 10}), Records: &records{},
	})
	held := []plan.Device{{PCIAddress: "0000:1b:00.0", Minor: 1}}
	open("7", "nv-hostengine", "/dev/nvidia1")
	open("8", "other", "/dev/nvidia10")
	if who, err := u.OpenedBy(t.Context(), held); who != "" || err != nil {
		t.Errorf("held by %q, %v", who, err)
	}
	open("9", "train", "/dev/nvidia1")
	if who, err := u.OpenedBy(t.Context(), held); !strings.Contains(who, "process 9 (train") || err != nil {
		t.Errorf("held by %q, %v", who, err)
	}
	held[0].Admin = true
	if who, err := u.OpenedBy(t.Context(), held); who != "" || err != nil {
		t.Errorf("watching is held up by %q, %v", who, err)
	}
}
