// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"
)

// partition is a MIG device of the test driver root's GPU, whose instances the kernel has.
func partition(t testing.TB, dir string) Device {
	t.Helper()
	d := device
	d.Name = "gpu-0000-1b-00-0-mig-1g-10gb-3"
	d.Partition = &Partition{UUID: "MIG-1", GPUInstance: 9, ComputeInstance: 0}
	write(t, filepath.Join(dir, "proc/devices"), "Character devices:\n195 nvidia\n510 nvidia-uvm\n237 nvidia-caps\n238 nvidia-caps-imex-channels\n\nBlock devices:\n  8 sd\n")
	caps := filepath.Join(dir, "proc/driver/nvidia/capabilities/gpu1/mig/gi9")
	write(t, filepath.Join(caps, "access"), "DeviceFileMinor: 219\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	write(t, filepath.Join(caps, "ci0/access"), "DeviceFileMinor: 220\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
	return d
}

func nodesOf(e specs.ContainerEdits) (out []string) {
	for _, n := range e.DeviceNodes {
		out = append(out, fmt.Sprintf("%s %s %d:%d %s", n.Path, n.Type, n.Major, n.Minor, n.Permissions))
	}
	slices.Sort(out)
	return out
}

func TestGPU_Partition_AddsTwoCapabilities(t *testing.T) {
	dir, o := newEnv(t)
	d := partition(t, dir)
	r := New(o)
	for range 2 { // the second answer is from what the first left
		edits, err := r.GPU(context.Background(), d)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"/dev/nvidia-caps/nvidia-cap219 c 237:219 r", "/dev/nvidia-caps/nvidia-cap220 c 237:220 r", "/dev/nvidia1 c 195:1 rw"}
		if got := nodesOf(edits); !slices.Equal(got, want) {
			t.Errorf("nodes %v, want %v", got, want)
		}
	}
	whole, err := r.GPU(context.Background(), device)
	// The hook obeys the container, and needs a C library of the node.
	if i := slices.IndexFunc(whole.Hooks, func(h *specs.Hook) bool { return slices.Contains(h.Args, "apply-cuda-memory-limits") }); i >= 0 {
		t.Errorf("hook %v", whole.Hooks[i].Args)
	}
	if err != nil || len(whole.DeviceNodes) != 1 {
		t.Errorf("the whole GPU after a partition: %v, %v", nodesOf(whole), err)
	}
	if name, err := r.ComputeCapability(d); err != nil || name != "nvidia-cap220" {
		t.Errorf("the node of its compute instance: %q, %v", name, err)
	}
}

func TestGPU_PartitionIncomplete_ReturnsError(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(dir string, d *Device) error
		is     error
		says   string
	}{
		"not made": {func(_ string, d *Device) error { d.Partition.UUID = ""; return nil }, ErrNoPartition, "has not been made"},
		"no GPU instance": {func(dir string, _ *Device) error {
			return os.RemoveAll(filepath.Join(dir, "proc/driver/nvidia/capabilities/gpu1/mig/gi9"))
		}, ErrNoPartition, "gi9"},
		"no compute instance": {func(dir string, _ *Device) error {
			return os.RemoveAll(filepath.Join(dir, "proc/driver/nvidia/capabilities/gpu1/mig/gi9/ci0"))
		}, ErrNoPartition, "ci0"},
		"garbage": {func(dir string, _ *Device) error {
			return os.WriteFile(filepath.Join(dir, "proc/driver/nvidia/capabilities/gpu1/mig/gi9/access"), []byte("DeviceFileMinor: many\n"), 0o600)
		}, ErrIncomplete, "no minor number"},
		"no major": {func(dir string, _ *Device) error {
			return os.WriteFile(filepath.Join(dir, "proc/devices"), []byte("195 nvidia\n238 nvidia-caps-imex-channels\n"), 0o600)
		}, ErrIncomplete, "nvidia-caps"},
		"no list of devices": {func(dir string, _ *Device) error { return os.Remove(filepath.Join(dir, "proc/devices")) }, os.ErrNotExist, "device numbers"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, o := newEnv(t)
			d := partition(t, dir)
			r := New(o)
			if _, err := r.GPU(context.Background(), d); err != nil {
				t.Fatal(err)
			}
			if err := tc.change(dir, &d); err != nil {
				t.Fatal(err)
			}
			if e, err := r.GPU(context.Background(), d); !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) || len(nodesOf(e)) > 0 {
				t.Errorf("%v, %v", nodesOf(e), err)
			}
		})
	}
}

func FuzzCapability(f *testing.F) {
	f.Add([]byte("DeviceFileMinor: 219\nDeviceFileMode: 292\n"))
	f.Add([]byte("237 nvidia-caps\n"))
	f.Add([]byte("DeviceFileGID: 44\nDeviceFileMode: 432\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, ok := parseMinor(accessForm, data); ok && (n < 0 || n >= 1<<20) {
			t.Error(n)
		}
		if n, ok := parseMajor(data, "nvidia-caps"); ok && n <= 0 {
			t.Error(n)
		}
		if mode, gid := parseParams(data); mode != nil && *mode&^0o777 != 0 || gid != nil && *gid == 0 {
			t.Error(mode, gid)
		}
	})
}

func TestCommon_HostHasMPSDaemon_LeavesItOut(t *testing.T) {
	dir, o := newEnv(t)
	write(t, filepath.Join(dir, "root/tmp/nvidia-mps"), "")
	edits, err := New(o).Common(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range edits.Mounts {
		if strings.Contains(m.ContainerPath, "nvidia-mps") {
			t.Errorf("%s is mounted at %s", m.HostPath, m.ContainerPath)
		}
	}
}
