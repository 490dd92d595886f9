// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/specs-go"
)

func TestGPU_Group_AddsSwitches(t *testing.T) {
	root, o := newEnv(t)
	for name, minor := range map[string]uint32{"nvidia-nvswitch0": 0, "nvidia-nvswitch1": 1, "nvidia-nvswitchctl": 255} {
		mknod(t, filepath.Join(root, "root/dev", name), uint32(unix.Mkdev(236, minor)))
	}
	// A regular file on the host is not a device in a container.
	if err := os.WriteFile(filepath.Join(root, "root/dev/nvidia-nvswitch2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	member := device
	member.Switches = true
	r := New(o)
	edits, err := r.GPU(context.Background(), member)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int64{}
	for _, n := range nodes(edits) {
		if n.Major == 236 {
			found[n.Path+" of "+n.HostPath+" "+n.Type+" "+n.Permissions] = n.Minor
		}
	}
	const host = "/run/nvidia/driver"
	for _, want := range []struct {
		name  string
		minor int64
	}{{"nvidia-nvswitch0", 0}, {"nvidia-nvswitch1", 1}, {"nvidia-nvswitchctl", 255}} {
		path := "/dev/" + want.name
		if minor, ok := found[path+" of "+host+path+" c rw"]; !ok || minor != want.minor {
			t.Errorf("%s is not as it should be: %v", want.name, found)
		}
	}
	if len(found) != 3 {
		t.Errorf("switches: %v", found)
	}
	// A single GPU needs no switch, even after a group was requested.
	if slices.ContainsFunc(nodes(gpuEdits(t, r)), func(n specs.DeviceNode) bool { return n.Major == 236 }) {
		t.Error("a GPU that is in no group has switches")
	}
}

// TestNodes_AnyStateOfDev_ContainerHasTheKernels changes the host's /dev. The driver makes nodes at its first use, and they
// can outlive a reload.
func TestNodes_AnyStateOfDev_ContainerHasTheKernels(t *testing.T) {
	file := func(t *testing.T, path string) { write(t, path, "") }
	other := func(t *testing.T, path string) { mknod(t, path, uint32(unix.Mkdev(509, 7))) }
	missing := func(*testing.T, string) {}
	for state, make := range map[string]func(*testing.T, string){"missing": missing, "a file": file, "of before a reload": other} {
		for _, name := range []string{"nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "*"} {
			t.Run(state+" "+name, func(t *testing.T) {
				dir, o := newEnv(t)
				r := New(o)
				common(t, r) // A filled cache.
				gpuEdits(t, r)
				paths, err := filepath.Glob(filepath.Join(dir, "root/dev", name))
				if err != nil || len(paths) == 0 {
					t.Fatal(paths, err)
				}
				for _, path := range paths {
					remove(t, path)
					make(t, path)
				}
				want := []string{"/dev/nvidia-uvm c 510:0 rw", "/dev/nvidia-uvm-tools c 510:1 rw", "/dev/nvidiactl c 195:255 rw"}
				if got := nodesOf(common(t, r)); !slices.Equal(got, want) {
					t.Errorf("%v, want %v", got, want)
				}
				if got := nodesOf(gpuEdits(t, r)); !slices.Equal(got, []string{"/dev/nvidia1 c 195:1 rw"}) {
					t.Errorf("the GPU has %v", got)
				}
			})
		}
	}
}

func TestNodes_MissingAndDriverHasMode_ContainerHasModeAndGroup(t *testing.T) {
	for params, want := range map[string]struct {
		mode   os.FileMode
		group  uint32
		groups []uint32
	}{
		"":                      {},
		"DeviceFileGID: x\n":    {},
		"DeviceFileMode: 438\n": {mode: 0o666},
		"ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n": {0o660, 44, []uint32{44}},
		"DeviceFileGID: 44\nDeviceFileMode: 438\n":                                         {0o666, 44, nil},
	} {
		dir, o := newEnv(t)
		r := New(o)
		gpuEdits(t, r)
		remove(t, filepath.Join(dir, "root/dev/nvidia1"))
		write(t, filepath.Join(dir, "proc/driver/nvidia/params"), params)
		e := gpuEdits(t, r)
		n := e.DeviceNodes[0]
		if len(e.DeviceNodes) != 1 || ptr.Deref(n.FileMode, 0) != want.mode || ptr.Deref(n.GID, 0) != want.group || !slices.Equal(e.AdditionalGIDs, want.groups) {
			t.Errorf("%q: %v %v, groups %v", params, ptr.Deref(n.FileMode, 0), ptr.Deref(n.GID, 0), e.AdditionalGIDs)
		}
	}
}
