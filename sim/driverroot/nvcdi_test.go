// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/sim/simtest"
)

// TestUp_ContainerToolkit_MakesFullSpec checks that nvidia-container-toolkit accepts the driver root.
func TestUp_ContainerToolkit_MakesFullSpec(t *testing.T) {
	r := simtest.Root(t, "hgx-h100", nil)
	r.Use(t)
	lib, err := nvcdi.New(nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithDriverRoot(r.Path), nvcdi.WithDevRoot(r.Path),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils))
	if err != nil {
		t.Fatal(err)
	}
	spec, err := lib.GetSpec("all")
	if err != nil {
		t.Fatal(err)
	}
	raw := spec.Raw()

	var devices []string
	for _, d := range raw.Devices {
		devices = append(devices, d.Name)
		if got := nodes(d.ContainerEdits); !slices.Equal(got, []string{"/dev/nvidia" + d.Name}) {
			t.Errorf("device %s has the nodes %v", d.Name, got)
		}
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4", "5", "6", "7"}, devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	common := raw.ContainerEdits
	wantNodes := []string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}
	if diff := cmp.Diff(wantNodes, nodes(common)); diff != "" {
		t.Errorf("control nodes (-want +got):\n%s", diff)
	}
	var mounts []string
	for _, m := range common.Mounts {
		mounts = append(mounts, m.ContainerPath)
		if m.HostPath != filepath.Join(r.Path, m.ContainerPath) {
			t.Errorf("%s comes from %s, not from the root", m.ContainerPath, m.HostPath)
		}
	}
	const version, lib64 = "580.126.09", "/usr/lib/x86_64-linux-gnu/"
	for _, want := range []string{
		lib64 + "libcuda.so." + version, lib64 + "libnvidia-ml.so." + version, lib64 + "libnvidia-ptxjitcompiler.so." + version,
		"/usr/bin/nvidia-smi", "/usr/bin/nvidia-persistenced",
		"/lib/firmware/nvidia/" + version + "/gsp_ga10x.bin",
	} {
		if !slices.Contains(mounts, want) {
			t.Errorf("no mount of %s among %v", want, mounts)
		}
	}
}

func nodes(e specs.ContainerEdits) []string {
	var paths []string
	for _, n := range e.DeviceNodes {
		paths = append(paths, n.Path)
	}
	slices.Sort(paths)
	return paths
}
