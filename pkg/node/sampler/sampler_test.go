// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"math"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/procfs"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

// node is a simulated machine with a Sampler.
type node struct {
	*Sampler
	machine *engine.Engine
	calls   *nvmltest.Calls
	targets []Target
	// proc is the node's /proc.
	proc string
}

func newNode(t *testing.T, profile string) *node {
	t.Helper()
	n := &node{machine: simtest.MachineInMemory(t, profile, 2), calls: &nvmltest.Calls{}, proc: t.TempDir()}
	n.Sampler = New(Options{
		Library: nvmlfake.WithHook(n.machine, n.calls.Do), Locks: NewLocks(), ProcRoot: n.proc,
		Mounts: mountsOf(t, []procfs.Mount{{Filesystem: "8:1", Root: "/", Point: "/"}}),
	})
	s, err := n.machine.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range s.GPUs {
		n.targets = append(n.targets, Target{GPU: gpu.GPU{PCIAddress: g.Address, UUID: g.UUID, ProductName: s.Profile.Board.ProductName}})
	}
	return n
}

// must reads once.
func (n *node) must(t *testing.T) Snapshot {
	t.Helper()
	if err := n.read(t.Context(), n.targets); err != nil {
		t.Fatal(err)
	}
	return n.Snapshot()
}

// partition creates a partition of the first GPU, with a process.
func (n *node) partition(t *testing.T, profile int, p engine.Process) {
	t.Helper()
	simtest.Change(t, n.machine, func(s *engine.State) {
		g := &s.GPUs[0]
		g.MIGEnabled, g.MIGPending = true, true
		i, code := s.CreateInstance(g, profile, engine.AnyStart)
		if code != 0 {
			t.Fatal(code)
		}
		c, code := s.CreateCompute(g, i.ID, 0)
		if code != 0 {
			t.Fatal(code)
		}
		p.Place = &engine.Place{GPUInstance: i.ID, ComputeInstance: c.ID}
		if err := s.AddProcess(g, p); err != nil {
			t.Fatal(err)
		}
		n.targets[0].Partitions = append(n.targets[0].Partitions, Partition{Name: "part", UUID: c.UUID, GPUInstance: i.ID, ComputeInstance: c.ID})
	})
}

func near(a, b float64) bool { return math.Abs(a-b) < .001 }

func TestRead_LoadedGPUs_MeasuresBoardsAndPartitions(t *testing.T) {
	n := newNode(t, "hgx-h100")
	n.partition(t, 19, engine.Process{PID: 5, MemoryMiB: 1024, Load: 50})
	n.partition(t, 19, engine.Process{PID: 6, MemoryMiB: 2048, Load: 100})
	simtest.Change(t, n.machine, func(s *engine.State) {
		if err := s.AddProcess(&s.GPUs[1], engine.Process{PID: 7, MemoryMiB: 512, Load: 30}); err != nil {
			t.Fatal(err)
		}
	})
	got := n.must(t)
	if len(got.GPUs) != 2 || got.At.IsZero() || len(got.GPUs[0].Partitions) != 2 {
		t.Fatalf("%+v", got)
	}
	board, whole := got.GPUs[0], got.GPUs[1]
	a, b := board.Partitions[0], board.Partitions[1]
	if !near(a.Utilization, .5) || !near(a.SM, .5) || !near(b.Utilization, 1) || a.Processes[0].Utilization != Absent {
		t.Errorf("partitions %+v and %+v", a, b)
	}
	if a.MemoryUsed+b.MemoryUsed != board.MemoryUsed || a.MemoryUsed != 1<<30 || a.MemoryTotal != 9856<<20 {
		t.Errorf("memory %v + %v of partitions, %v of the board", a.MemoryUsed, b.MemoryUsed, board.MemoryUsed)
	}
	if !near(board.SM*132, a.SM*16+b.SM*16) || board.MemoryUtilization != Absent {
		t.Errorf("the board is busy to %v", board.SM)
	}
	if !near(whole.Utilization, .3) || !near(whole.SM, .3) || !near(whole.Tensor, .12) || len(whole.Processes) != 1 || !near(whole.Processes[0].Utilization, .3) ||
		whole.Clocks["sm"] != 1980e6 || whole.PowerW < 100 || whole.TemperatureC <= 0 || whole.Counters.EnergyMJ < 0 || whole.Counters.PowerCap != Absent {
		t.Errorf("whole GPU %+v", whole)
	}
}

func TestRead_A100InMIGMode_UtilizationAbsent(t *testing.T) {
	n := newNode(t, "dgx-a100-40")
	n.partition(t, 19, engine.Process{PID: 5, MemoryMiB: 1024, Load: 50})
	got := n.must(t).GPUs[0]
	if got.Utilization != Absent || got.SM != Absent || got.Partitions[0].Utilization != Absent || got.Partitions[0].SM != Absent {
		t.Errorf("utilization %v and %v, want none", got.Utilization, got.Partitions[0].Utilization)
	}
	if got.Partitions[0].MemoryUsed != 1<<30 || len(got.Partitions[0].Processes) != 1 || got.PowerW <= 0 {
		t.Errorf("%+v, want memory, processes and power", got)
	}
}

// TestRead_QueryRefused_ValueAbsent refuses each query in turn. The others are measured.
func TestRead_QueryRefused_ValueAbsent(t *testing.T) {
	n := newNode(t, "hgx-h100")
	for query, absent := range map[string]func(GPU) bool{
		"nvmlDeviceGetMemoryInfo_v2":              func(g GPU) bool { return g.MemoryUsed == Absent && g.MemoryTotal == Absent },
		"nvmlDeviceGetPowerUsage":                 func(g GPU) bool { return g.PowerW == Absent },
		"nvmlDeviceGetTemperature":                func(g GPU) bool { return g.TemperatureC == Absent },
		"nvmlDeviceGetClockInfo":                  func(g GPU) bool { return len(g.Clocks) == 0 },
		"nvmlDeviceGetFieldValues":                func(g GPU) bool { return g.Counters == noCounters },
		"nvmlGpmSampleGet":                        func(g GPU) bool { return g.SM == Absent && g.Utilization == 0 },
		"nvmlDeviceGetDecoderUtilization":         func(g GPU) bool { return g.Decoder == Absent && g.Encoder == Absent },
		"nvmlDeviceGetUtilizationRates":           func(g GPU) bool { return g.MemoryUtilization == Absent && g.Utilization == 0 },
		"nvmlDeviceGetComputeRunningProcesses_v3": func(g GPU) bool { return g.Processes == nil },
	} {
		n.calls.Answer(nvml.NotSupported, nvmltest.Of(query, n.targets[0].UUID))
		got := n.must(t)
		n.calls.Clear()
		if len(got.GPUs) != 2 || !absent(got.GPUs[0]) {
			t.Errorf("without %s: %+v", query, got.GPUs)
		}
		if len(got.GPUs) == 2 && absent(got.GPUs[1]) {
			t.Errorf("without %s of one GPU, the other has no value", query)
		}
	}
}

func TestRead_GPUHangs_OthersAreMeasured(t *testing.T) {
	n := newNode(t, "hgx-h100")
	hung := n.calls.Hang(nvmltest.Of("nvmlDeviceGetFieldValues", n.targets[0].UUID))
	for range 2 { // The second reading leaves the GPU out.
		if got := n.must(t); len(got.GPUs) != 1 || got.GPUs[0].UUID != n.targets[1].UUID {
			t.Errorf("%+v, want the other GPU", got.GPUs)
		}
	}
	if len(hung) != 1 {
		t.Errorf("%d calls hang, want one", len(hung))
	}
	n.calls.Clear()
	for deadline := time.Now().Add(time.Minute); len(n.must(t).GPUs) != 2; {
		if time.Now().After(deadline) {
			t.Fatal("the GPU is not measured after it answers again")
		}
	}
}

func TestRead_NoTargetsOrLocked_CallsNothing(t *testing.T) {
	n := newNode(t, "hgx-h100")
	before := n.must(t)
	n.calls.Answer(0, func(int, nvmltest.Call) bool { return true })
	n.Lock("")
	if got := n.must(t); got.At != before.At {
		t.Error("a reading began during a switch of a MIG mode")
	}
	n.Unlock("")
	n.targets = nil
	if got := n.must(t); len(got.GPUs) != 0 || !got.At.IsZero() {
		t.Errorf("%+v without GPUs to measure", got)
	}
	if calls := n.calls.Clear(); len(calls) != 0 {
		t.Errorf("calls %v", calls)
	}
}

func TestTargets_ClaimAfterScan_HasItsPartition(t *testing.T) {
	s := gpu.Snapshot{GPUs: []gpu.GPU{{PCIAddress: "0000:1b:00.0", UUID: "GPU-0", MIG: gpu.MIG{Partitions: []gpu.Partition{
		{Profile: "1g.10gb", Placement: gpu.Placement{Start: 3, Size: 1}, GPUInstance: 7, Devices: []gpu.PartitionDevice{{UUID: "MIG-a"}}},
	}}}}}
	plans := []plan.Plan{{Devices: []plan.Device{
		{Kind: gpu.KindMIG, UUID: "GPU-0", PCIAddress: "0000:1b:00.0", Partition: plan.Partition{Profile: "1g.10gb", Start: 3, UUID: "MIG-a", GPUInstance: 7}},
		{Kind: gpu.KindMIG, UUID: "GPU-0", PCIAddress: "0000:1b:00.0", Partition: plan.Partition{Profile: "2g.20gb", Start: 4, UUID: "MIG-b", GPUInstance: 3}},
	}}}
	if got := Targets(s, nil, false); len(got) != 0 {
		t.Errorf("without claims: %+v", got)
	}
	if got := Targets(s, nil, true); len(got) != 1 {
		t.Errorf("idle GPUs: %+v", got)
	}
	got := Targets(s, plans, false)
	want := []Partition{
		{Name: "gpu-0000-1b-00-0-mig-1g-10gb-3", Profile: "1g.10gb", UUID: "MIG-a", GPUInstance: 7},
		{Name: "gpu-0000-1b-00-0-mig-2g-20gb-4", Profile: "2g.20gb", UUID: "MIG-b", GPUInstance: 3},
	}
	if len(got) != 1 || len(got[0].Partitions) != 2 || got[0].Partitions[0] != want[0] || got[0].Partitions[1] != want[1] {
		t.Errorf("%+v", got)
	}
}
