// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/plan"
)

func TestAGroupIsOneDeviceAndTheFileForNCCLIsItsOwn(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.groupClaim("a", 0, 4)
	devices, err := p.Prepare(context.Background(), w.claims["a"])
	w.must(err)
	if len(devices) != 1 || devices[0].Name != "nvlink-4-0000-10-00-0" || len(devices[0].Members) != 4 {
		t.Fatalf("prepared %+v", devices)
	}
	data, err := os.ReadFile(w.specFile("a"))
	w.must(err)
	var spec specs.Spec
	w.must(json.Unmarshal(data, &spec))
	if len(spec.Devices) != 1 || !strings.HasSuffix(devices[0].CDIDeviceID, "="+spec.Devices[0].Name) {
		t.Fatalf("the spec has %d devices", len(spec.Devices))
	}
	edits := spec.Devices[0].ContainerEdits
	var nodes []string
	for _, n := range edits.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	if diff := cmp.Diff([]string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"}, nodes); diff != "" {
		t.Errorf("device nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"CUDA_VISIBLE_DEVICES=GPU-0,GPU-1,GPU-2,GPU-3", "NCCL_TOPO_FILE=/run/nvidia/nccl-topology.xml"}, edits.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if len(edits.Mounts) != 1 || edits.Mounts[0].HostPath != w.topologyFile("a") || edits.Mounts[0].ContainerPath != "/run/nvidia/nccl-topology.xml" {
		t.Errorf("mounts %+v", edits.Mounts)
	}
	file, err := os.ReadFile(w.topologyFile("a"))
	w.must(err)
	for i := range 4 {
		if !strings.Contains(string(file), `<pci busid="`+address(i)+`"`) {
			t.Errorf("GPU %d is not in the file:\n%s", i, file)
		}
	}
	w.clean(p, "a")
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	w.clean(p)
}

func TestAGroupAndItsGPUsExcludeEachOther(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.groupClaim("a", 0, 2)
	w.prepare(p, "a")
	w.claim("b", 1)
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-11-00-0", "nvlink-2-0000-10-00-0", "default/claim-a")
	w.groupClaim("c", 0, 4)
	w.refused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "nvlink-4-0000-10-00-0", "default/claim-a")
	w.clean(p, "a")
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	w.prepare(p, "c")
	w.clean(p, "c")
}

// TestAPreparedGroupKeepsItsGPUs has what a group's name stands for change under it.
func TestAPreparedGroupKeepsItsGPUs(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	w.groupClaim("a", 0, 2)
	w.prepare(p, "a")
	members := func() (out []string) {
		plans, _, err := p.Held()
		w.must(err)
		for _, held := range plans {
			if held.Claim.UID == "a" {
				out = append(out, held.Addresses()...)
			}
		}
		return out
	}
	w.snapshot.GPUs[1].Links = nil
	w.prepare(p, "a")
	w.clean(p, "a")
	w.groupClaim("b", 0, 2)
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceNotReady, "NVLink does not connect 2 GPUs", address(0), "nvidia-smi nvlink")
	// GPU 1 is another model now, and 0 and 2 stand side by side: the name is free to mean them, the claim's GPUs are not.
	w.snapshot.GPUs[1].ProductName = "another"
	w.refused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "default/claim-a")
	w.prepare(p, "a")
	if diff := cmp.Diff([]string{address(0), address(1)}, members()); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	w.clean(p, "a")
	w.must(p.Unprepare(context.Background(), claimOf("a")))
	w.prepare(p, "b")
	w.clean(p, "b")
	// A member that is gone is said to be, and its claim can end.
	w.snapshot.GPUs = append(w.snapshot.GPUs[:2:2], w.snapshot.GPUs[3])
	w.refused(p, "b", claimerror.Transient, claimerror.UnknownDevice, address(2))
	w.must(p.Unprepare(context.Background(), claimOf("b")))
	w.clean(p)
}

func TestEachGPUOfAGroupIsMadeWhole(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	var made []string
	p.Whole = func(_ context.Context, d *plan.Device) error {
		made = append(made, d.PCIAddress)
		return nil
	}
	w.groupClaim("a", 0, 4)
	w.prepare(p, "a")
	if diff := cmp.Diff([]string{address(0), address(1), address(2), address(3)}, made); diff != "" {
		t.Errorf("made whole (-want +got):\n%s", diff)
	}
}

// TestAGroupIsAllOrNothing has one of its GPUs refuse.
func TestAGroupIsAllOrNothing(t *testing.T) {
	w := newWorld(t)
	p := w.run()
	p.Whole = func(_ context.Context, d *plan.Device) error {
		if d.PCIAddress == address(2) {
			return errors.New("process 7 holds it")
		}
		return nil
	}
	steps(w.groupClaim("a", 0, 4))
	w.refused(p, "a", claimerror.Transient, claimerror.HostFailure, "process 7")
	w.clean(p)
	w.claim("b", 0)
	w.prepare(p, "b")
	w.clean(p, "b")
}
