// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpu-dra-driver/internal/recordedtest"
)

// addressOf returns the recorded GPU's address in the kernel's format. NVML's domain has eight digits.
func addressOf(t *testing.T, r recordedtest.Recording) string {
	t.Helper()
	return strings.ToLower(strings.TrimPrefix(r.SMI(t, "Bus Id"), "0000"))
}

func TestRecorded_ProcFiles_AreRead(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		nodes := r.Nodes(t)
		devices := []byte(r.Text(t, "proc-devices.txt"))
		for name, node := range map[string]string{"nvidia": "nvidia0", "nvidia-uvm": "nvidia-uvm", "nvidia-caps": "nvidia-cap1"} {
			if major, ok := parseMajor(devices, name); !ok || major != nodes[node].Major {
				t.Errorf("the major number of %s is %d (%v), and /dev/%s has %d", name, major, ok, node, nodes[node].Major)
			}
		}
		version, err := parseVersion("", []byte(r.Text(t, "proc-driver-nvidia-version.txt")))
		if want := r.SMI(t, "Driver Version"); version != want {
			t.Errorf("the kernel module is of version %q (%v), and nvidia-smi says %q", version, err, want)
		}
		mode, gid := parseParams([]byte(r.Text(t, "proc-driver-nvidia-params.txt")))
		if want := nodes["nvidia0"].Mode; mode == nil || *mode != want || gid != nil {
			t.Errorf("nodes have the mode %v and the group %v, want %v and root", mode, gid, want)
		}
		minor, ok := parseMinor(minorForm, []byte(r.Text(t, "proc-driver-nvidia-gpu-information.txt")))
		if want := r.SMI(t, "Minor Number"); !ok || strconv.Itoa(minor) != want {
			t.Errorf("the GPU's minor number is %d (%v), and nvidia-smi says %s", minor, ok, want)
		}
		for _, capability := range []string{"config", "monitor"} {
			n, ok := parseMinor(accessForm, []byte(r.Text(t, "proc-driver-nvidia-capabilities-mig-"+capability+".txt")))
			if node := nodes[fmt.Sprintf("nvidia-cap%d", n)]; !ok || node.Minor != int64(n) {
				t.Errorf("the capability %s has the minor number %d (%v), and /dev has no such node", capability, n, ok)
			}
		}
	})
}

// TestRecorded_DeviceNodes_AreDescribed describes nodes by the recorded /proc alone, and compares them with the recorded /dev.
func TestRecorded_DeviceNodes_AreDescribed(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		address := addressOf(t, r)
		root := New(Options{ProcRoot: r.ProcRoot(t, address), DriverRoot: t.TempDir()})
		minor, err := root.minor(Device{PCIAddress: address, Minor: 7})
		if err != nil {
			t.Fatal(err)
		}
		described, err := root.describe(slices.Concat(controlNodes, []driverNode{gpuNode(Device{Minor: minor})})...)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range described {
			want, ok := r.Nodes(t)[filepath.Base(n.Path)]
			if !ok || n.Major != want.Major || n.Minor != want.Minor || *n.FileMode != want.Mode || n.GID != nil {
				t.Errorf("%s is %d:%d %v of group %v, want %+v", n.Path, n.Major, n.Minor, n.FileMode, n.GID, want)
			}
		}
		major, err := root.capsMajor()
		if err != nil || major != r.Nodes(t)["nvidia-cap1"].Major {
			t.Errorf("the major number of capabilities is %d, %v", major, err)
		}
	})
}

// TestRecorded_MIGOff_NoPartition: the kernel has a directory for the GPU's instances, and it is empty.
func TestRecorded_MIGOff_NoPartition(t *testing.T) {
	recordedtest.Each(t, func(t *testing.T, r recordedtest.Recording) {
		address := addressOf(t, r)
		proc := r.ProcRoot(t, address)
		if err := os.MkdirAll(filepath.Join(proc, "driver/nvidia/capabilities/gpu0/mig"), 0o755); err != nil {
			t.Fatal(err)
		}
		root := New(Options{ProcRoot: proc, DriverRoot: t.TempDir()})
		_, err := root.ComputeCapability(Device{PCIAddress: address, Partition: &Partition{UUID: "MIG-0", GPUInstance: 1}})
		if err == nil || !strings.Contains(err.Error(), ErrNoPartition.Error()) {
			t.Errorf("a partition of a GPU with MIG off: %v", err)
		}
	})
}
