// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// TestGPU_NodesOfBeforeAReload_ReturnsError has device nodes whose numbers other devices have now.
func TestGPU_NodesOfBeforeAReload_ReturnsError(t *testing.T) {
	for name, number := range map[string]int{"nvidia1": int(unix.Mkdev(195, 0)), "nvidia-uvm": int(unix.Mkdev(509, 0))} {
		t.Run(name, func(t *testing.T) {
			dir, o := newEnv(t)
			r := New(o)
			if _, err := r.GPU(t.Context(), device); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "root/dev", name)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			mknod(t, path, uint32(number))
			e, err := r.GPU(t.Context(), device)
			if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "nvidia-modprobe") {
				t.Errorf("%v, nodes %v", err, nodesOf(e))
			}
		})
	}
}
