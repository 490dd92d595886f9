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

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

func TestPrepare_Group_OneDeviceWithOwnNCCLFile(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.GroupClaim("a", 0, 4)
	devices, err := p.Prepare(context.Background(), e.Claims["a"])
	e.Must(err)
	if len(devices) != 1 || devices[0].Name != "nvlink-4-0000-10-00-0" || len(devices[0].Members) != 4 {
		t.Fatalf("prepared %+v", devices)
	}
	data, err := os.ReadFile(e.SpecFile("a"))
	e.Must(err)
	var spec specs.Spec
	e.Must(json.Unmarshal(data, &spec))
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
	env := []string{
		"CUDA_VISIBLE_DEVICES=GPU-0,GPU-1,GPU-2,GPU-3", "NCCL_TOPO_FILE=/run/nvidia/nccl-topology.xml",
		"NVIDIA_DRA_UUID_R0_NVLINK_4_0000_10_00_0=GPU-0,GPU-1,GPU-2,GPU-3",
	}
	if diff := cmp.Diff(env, edits.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if len(edits.Mounts) != 2 || edits.Mounts[0].HostPath != e.TopologyFile("a") || edits.Mounts[0].ContainerPath != "/run/nvidia/nccl-topology.xml" {
		t.Errorf("mounts %+v", edits.Mounts)
	}
	file, err := os.ReadFile(e.TopologyFile("a"))
	e.Must(err)
	for i := range 4 {
		if !strings.Contains(string(file), `<pci busid="`+devicestatetest.Address(i)+`"`) {
			t.Errorf("GPU %d is not in the file:\n%s", i, file)
		}
	}
	e.CheckClean(p, "a")
	e.Unprepare(p, "a")
	e.CheckClean(p)
}

func TestPrepare_GroupAndItsGPU_ExcludeEachOther(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.GroupClaim("a", 0, 2)
	e.Prepare(p, "a")
	e.Claim("b", "1")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-11-00-0", "nvlink-2-0000-10-00-0", "default/claim-a")
	e.GroupClaim("c", 0, 4)
	e.CheckRefused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "nvlink-4-0000-10-00-0", "default/claim-a")
	e.CheckClean(p, "a")
	e.Unprepare(p, "a")
	e.Prepare(p, "c")
	e.CheckClean(p, "c")
}

// TestPrepare_PreparedGroupChanges_KeepsItsGPUs has what a group's name stands for change under it.
func TestPrepare_PreparedGroupChanges_KeepsItsGPUs(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.GroupClaim("a", 0, 2)
	e.Prepare(p, "a")
	members := func() (out []string) {
		plans, _, err := p.Held()
		e.Must(err)
		for _, held := range plans {
			if held.Claim.UID == "a" {
				out = append(out, held.HeldGPUs()...)
			}
		}
		return out
	}
	e.Snapshot.GPUs[1].Links = nil
	e.Prepare(p, "a")
	e.CheckClean(p, "a")
	e.GroupClaim("b", 0, 2)
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceNotReady, "NVLink no longer connects 2 GPUs", devicestatetest.Address(0), "nvidia-smi nvlink")
	// GPU 1 is another model now, and 0 and 2 stand side by side: the name is free to mean them, the claim's GPUs are not.
	e.Snapshot.GPUs[1].ProductName = "another"
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "default/claim-a")
	e.Prepare(p, "a")
	if diff := cmp.Diff([]string{devicestatetest.Address(0), devicestatetest.Address(1)}, members()); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	e.CheckClean(p, "a")
	e.Unprepare(p, "a")
	e.Prepare(p, "b")
	e.CheckClean(p, "b")
	// An error names a missing member, and its claim can end.
	e.Snapshot.GPUs = append(e.Snapshot.GPUs[:2:2], e.Snapshot.GPUs[3])
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceLost, devicestatetest.Address(2), "no longer lists")
	e.Unprepare(p, "b")
	e.CheckClean(p)
}

func TestPrepare_Group_MakesEachGPUWhole(t *testing.T) {
	e := devicestatetest.New(t)
	var made []string
	e.Configure = func(o *devicestate.Options) {
		o.Settle = append(o.Settle, func(_ context.Context, d *plan.Device) error {
			made = append(made, d.PCIAddress)
			return nil
		})
	}
	p := e.Start()
	e.GroupClaim("a", 0, 4)
	e.Prepare(p, "a")
	if diff := cmp.Diff([]string{devicestatetest.Address(0), devicestatetest.Address(1), devicestatetest.Address(2), devicestatetest.Address(3)}, made); diff != "" {
		t.Errorf("made whole (-want +got):\n%s", diff)
	}
}

// TestPrepare_OneGPUOfGroupFails_PreparesNone has one of its GPUs refuse.
func TestPrepare_OneGPUOfGroupFails_PreparesNone(t *testing.T) {
	e := devicestatetest.New(t)
	e.Configure = func(o *devicestate.Options) {
		o.Settle = append(o.Settle, func(_ context.Context, d *plan.Device) error {
			if d.PCIAddress == devicestatetest.Address(2) {
				return errors.New("process 7 holds it")
			}
			return nil
		})
	}
	p := e.Start()
	steps(e.GroupClaim("a", 0, 4))
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.HostFailure, "process 7")
	e.CheckClean(p)
	e.Claim("b", "0")
	e.Prepare(p, "b")
	e.CheckClean(p, "b")
}
