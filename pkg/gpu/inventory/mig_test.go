// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// partition makes an instance of a profile at a start, with its compute instance unless bare.
func partition(t *testing.T, machine *engine.Engine, profile, start int, bare bool) {
	t.Helper()
	simtest.Change(t, machine, func(s *engine.State) {
		g := &s.GPUs[0]
		if code := s.SetMIGMode(g, true); code != 0 {
			t.Fatal(code)
		}
		i, code := s.CreateInstance(g, profile, start)
		if code == 0 && !bare {
			_, code = s.CreateCompute(g, i.ID, 0)
		}
		if code != 0 {
			t.Fatal(code)
		}
	})
}

func TestScan_AnyMIGMode_ReadsProfiles(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	i := bare(t, nvmlfake.New(machine))
	off := scan(t, i).GPUs[0].MIG
	if !off.Capable || off.Enabled || off.Pending || !off.Switchable || off.Fault != "" || len(off.Profiles) != 7 || off.Partitions != nil {
		t.Fatalf("MIG %+v", off)
	}
	one, ok := off.ProfileNamed("1g.10gb")
	want := gpu.Profile{
		ID: 19, Name: "1g.10gb", Slices: 1, Instances: 7, MemoryBytes: 9856 << 20, Multiprocessors: 16, CopyEngines: 1, Decoders: 1, JPEGEngines: 1,
		Placements: []gpu.Placement{{Start: 0, Size: 1}, {Start: 1, Size: 1}, {Start: 2, Size: 1}, {Start: 3, Size: 1}, {Start: 4, Size: 1}, {Start: 5, Size: 1}, {Start: 6, Size: 1}},
	}
	if diff := cmp.Diff(want, one); diff != "" || !ok {
		t.Errorf("1g.10gb (-want +got):\n%s", diff)
	}
	partition(t, machine, 19, 3, false)
	on := scan(t, i).GPUs[0].MIG
	if diff := cmp.Diff(off.Profiles, on.Profiles); diff != "" || !on.Enabled {
		t.Errorf("profiles changed with the mode:\n%s", diff)
	}
}

func TestScan_MIGModeSwitched_MultiprocessorsStay(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	i := bare(t, nvmlfake.New(machine))
	whole := scan(t, i).GPUs
	partition(t, machine, 19, 3, false)
	for name, i := range map[string]*Inventory{"a later scan": i, "another process": bare(t, nvmlfake.New(machine))} {
		if now := scan(t, i).GPUs[0]; !now.MIG.Enabled || now.Multiprocessors != whole[0].Multiprocessors {
			t.Errorf("%s: %d multiprocessors, MIG mode %t; want %d", name, now.Multiprocessors, now.MIG.Enabled, whole[0].Multiprocessors)
		}
	}
	simtest.Change(t, machine, func(s *engine.State) {
		for n := range s.GPUs {
			if code := s.SetMIGMode(&s.GPUs[n], true); code != 0 {
				t.Fatal(code)
			}
		}
	})
	if now := scan(t, i).GPUs[7]; now.Multiprocessors != whole[7].Multiprocessors {
		t.Errorf("all GPUs are in MIG mode: %d multiprocessors, want %d", now.Multiprocessors, whole[7].Multiprocessors)
	}
	if now := scan(t, bare(t, nvmlfake.New(machine))).GPUs[0]; now.Multiprocessors != 0 {
		t.Errorf("no GPU has reported its multiprocessors: %d", now.Multiprocessors)
	}
}

func TestScan_InstanceWithoutDevice_IsPartition(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	partition(t, machine, 9, 4, false)
	partition(t, machine, 19, 0, true)
	st, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	var uuid string
	for _, i := range st.GPUs[0].Instances {
		if i.Start == 4 {
			uuid = i.Computes[0].UUID
		}
	}
	want := []gpu.Partition{
		{Profile: "1g.10gb", Placement: gpu.Placement{Start: 0, Size: 1}, GPUInstance: 7},
		{Profile: "3g.40gb", Placement: gpu.Placement{Start: 4, Size: 4}, GPUInstance: 1, Devices: []gpu.PartitionDevice{{UUID: uuid}}},
	}
	if diff := cmp.Diff(want, scan(t, bare(t, nvmlfake.New(machine))).GPUs[0].MIG.Partitions); diff != "" {
		t.Errorf("partitions (-want +got):\n%s", diff)
	}
}

// TestScan_PartitionOfAnotherProcess_IsUnlisted has a session, like the watcher's, that began before another process made the
// second partition.
func TestScan_PartitionOfAnotherProcess_IsUnlisted(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	partition(t, machine, 19, 0, false)
	library := nvmlfake.New(machine)
	session, err := library.Open()
	if err != nil {
		t.Fatal(err)
	}
	i := bare(t, library)
	scan(t, i)
	partition(t, machine, 19, 1, false)
	partition(t, machine, 19, 2, true)
	var got []bool
	for _, p := range scan(t, i).GPUs[0].MIG.Partitions {
		got = append(got, len(p.Devices) == 1, p.Unlisted)
	}
	if diff := cmp.Diff([]bool{true, false, false, true, false, false}, got); diff != "" {
		t.Errorf("listed and unlisted of three partitions (-want +got):\n%s", diff)
	}
	if err := session.Close(); err != nil {
		t.Fatal(err)
	}
	if p := scan(t, i).GPUs[0].MIG.Partitions[1]; len(p.Devices) != 1 || p.Unlisted {
		t.Errorf("in a new session: %+v", p)
	}
}

func TestScan_MIGQueryFails_SetsMIGFault(t *testing.T) {
	for query, lost := range map[string]bool{
		"nvmlDeviceGetGpuInstanceProfileInfoV": false, "nvmlDeviceGetGpuInstancePossiblePlacements_v2": false,
		"nvmlDeviceGetGpuInstances": false, "nvmlDeviceGetMigDeviceHandleByIndex": false, "nvmlGpuInstanceGetInfo": true,
	} {
		t.Run(query, func(t *testing.T) {
			machine := simtest.Machine(t, "hgx-h100")
			partition(t, machine, 19, 0, false)
			code := nvml.Unknown
			if lost {
				code = nvml.GPUIsLost
			}
			simtest.Change(t, machine, func(s *engine.State) {
				s.Faults = []engine.Fault{{Query: query, GPU: s.GPUs[0].UUID, Code: code}}
			})
			s := scan(t, bare(t, nvmlfake.New(machine)))
			if lost {
				if len(s.GPUs) != 7 || len(s.Problems) != 1 || !s.Problems[0].Lost {
					t.Errorf("%d GPUs, problems %+v", len(s.GPUs), s.Problems)
				}
				return
			}
			m := s.GPUs[0].MIG
			if len(s.GPUs) != 8 || !m.Capable || !m.Enabled || m.Profiles != nil || m.Partitions != nil || !strings.Contains(m.Fault, query) {
				t.Errorf("%d GPUs, MIG %+v", len(s.GPUs), m)
			}
			if n := s.GPUs[1].MIG; n.Fault != "" || len(n.Profiles) != 7 {
				t.Errorf("the neighbour: %+v", n)
			}
		})
	}
}

// TestScan_InstanceDestroyedMeanwhile_ReadsOthers has an instance that vanishes between its listing and its query.
func TestScan_InstanceDestroyedMeanwhile_ReadsOthers(t *testing.T) {
	for _, code := range []nvml.Code{nvml.NotFound, nvml.InvalidArgument} {
		machine := simtest.Machine(t, "hgx-h100")
		partition(t, machine, 9, 4, false)
		partition(t, machine, 19, 0, false)
		calls := new(nvmltest.Calls)
		queries := 0
		calls.Answer(code, func(_ int, c nvmltest.Call) bool {
			if c.Query != "nvmlGpuInstanceGetInfo" {
				return false
			}
			queries++
			return queries == 1
		})
		m := scan(t, bare(t, nvmlfake.WithHook(machine, calls.Do))).GPUs[0].MIG
		calls.Clear()
		if m.Fault != "" || len(m.Profiles) == 0 || len(m.Partitions) != 1 {
			t.Errorf("code %d: %+v", code, m)
		}
	}
}

func TestWatch_ExternalPartition_SeenAtNextPoll(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	proc, ticks := t.TempDir(), make(chan time.Time)
	i := New(Options{
		Library: nvmlfake.New(machine), ProcRoot: proc, SysRoot: t.TempDir(), DevRoot: t.TempDir(),
		Tick: func(time.Duration) (<-chan time.Time, func()) { return ticks, func() {} },
	})
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(chan gpu.Snapshot)
	done := make(chan error)
	go func() {
		done <- i.Watch(ctx, func(s gpu.Snapshot, _ error) { seen <- s })
	}()
	<-seen
	partition(t, machine, 19, 0, false)
	if err := os.MkdirAll(filepath.Join(proc, "driver/nvidia/capabilities/gpu0/mig/gi7/ci0"), 0o755); err != nil {
		t.Fatal(err)
	}
	ticks <- time.Time{}
	if s := <-seen; len(s.GPUs[0].MIG.Partitions) != 1 {
		t.Errorf("partitions %+v", s.GPUs[0].MIG.Partitions)
	}
	cancel()
	<-done
}
