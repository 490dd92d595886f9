// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// TestSpec_Group_IsOneDevice prepares two groups and a monitor of the first one, which comes after another device.
func TestSpec_Group_IsOneDevice(t *testing.T) {
	p := onePlan()
	p.Devices = nil
	var e cdi.Edits
	add := func(request, name string, kind gpu.Kind, admin bool, minors ...int64) {
		for _, m := range minors {
			p.Devices = append(p.Devices, plan.Device{Request: request, Pool: "n/gpu", Name: name, Kind: kind, Admin: admin})
			e.Devices = append(e.Devices, specs.ContainerEdits{
				Env:         []string{"SAME=1"},
				DeviceNodes: []*specs.DeviceNode{node("/dev/nvidia"+string('0'+rune(m)), m), node("/dev/nvidia-nvswitchctl", 254)},
				Mounts:      []*specs.Mount{{HostPath: "/a", ContainerPath: "/a"}},
				Hooks:       []*specs.Hook{{HookName: "createContainer", Path: "/h"}},
			})
		}
	}
	add("a", "nvlink-2-0000-10-00-0", gpu.KindGroup, false, 0, 1)
	add("b", "nvlink-2-0000-12-00-0", gpu.KindGroup, false, 2, 3)
	add("c", "gpu-0000-14-00-0", gpu.KindGPU, false, 4)
	add("d", "nvlink-2-0000-10-00-0", gpu.KindGroup, true, 0, 1)
	spec, err := cdi.Spec(driver, p, "boot-1", e)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, d := range spec.Devices {
		for _, n := range d.ContainerEdits.DeviceNodes {
			got[d.Name] = append(got[d.Name], n.Path)
		}
		if c := d.ContainerEdits; len(c.Mounts) != 1 || len(c.Hooks) != 1 || len(c.Env) != 1 {
			t.Errorf("%s has %d mounts, %d hooks and %v", d.Name, len(c.Mounts), len(c.Hooks), c.Env)
		}
	}
	want := map[string][]string{
		"u-1-nvlink-2-0000-10-00-0": {"/dev/nvidia0", "/dev/nvidia-nvswitchctl", "/dev/nvidia1"},
		"u-1-nvlink-2-0000-12-00-0": {"/dev/nvidia2", "/dev/nvidia-nvswitchctl", "/dev/nvidia3"},
		"u-1-gpu-0000-14-00-0":      {"/dev/nvidia4", "/dev/nvidia-nvswitchctl"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/dev/nvidia0", "/dev/nvidia-nvswitchctl"}, []string{e.Devices[0].DeviceNodes[0].Path, e.Devices[0].DeviceNodes[1].Path}); diff != "" || len(e.Devices[0].DeviceNodes) != 2 {
		t.Errorf("the caller's edits were changed: %v", e.Devices[0].DeviceNodes)
	}
}

func TestDeviceEdits_Topology_GetsEnvironmentAndMount(t *testing.T) {
	given := specs.ContainerEdits{Env: []string{"A=1"}}
	if diff := cmp.Diff(given, cdi.DeviceEdits(given, plan.Claim{}, plan.Device{}, cdi.Paths{Topology: "/f"})); diff != "" {
		t.Errorf("without topology (-want +got):\n%s", diff)
	}
	got := cdi.DeviceEdits(given, plan.Claim{}, plan.Device{TopologyEnv: plan.TopologyEnv{VisibleDevices: "GPU-1,GPU-0", NCCLTopology: "<system/>"}}, cdi.Paths{Topology: "/f"})
	want := specs.ContainerEdits{
		Env:    []string{"A=1", "CUDA_VISIBLE_DEVICES=GPU-1,GPU-0", "NCCL_TOPO_FILE=/run/nvidia/nccl-topology.xml"},
		Mounts: []*specs.Mount{{HostPath: "/f", ContainerPath: "/run/nvidia/nccl-topology.xml", Options: []string{"ro", "nosuid", "nodev", "bind"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
