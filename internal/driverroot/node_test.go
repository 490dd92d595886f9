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
