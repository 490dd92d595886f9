// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformancetest_test

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/conformancetest"
	"gpu-dra-driver/internal/nvml/native"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

func TestRun_Fake_Conforms(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			machine := simtest.Machine(t, name)
			p, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			conformancetest.Run(t, nvmlfake.New(machine), conformancetest.Options{GPUs: len(p.Slots)})
		})
	}
}

func TestRun_FakeWithLostGPU_Conforms(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	simtest.Change(t, machine, func(s *engine.State) { s.GPUs[3].Lost = true })
	conformancetest.Run(t, nvmlfake.New(machine), conformancetest.Options{GPUs: 8})
}

func TestRun_SimulatedLibrary_Conforms(t *testing.T) {
	for _, name := range profiles.Names() {
		t.Run(name, func(t *testing.T) {
			root := simtest.Root(t, name, nil)
			root.Use(t)
			p, err := profiles.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			conformancetest.Run(t, native.New(root.Path), conformancetest.Options{GPUs: len(p.Slots), DevRoot: root.Path})
		})
	}
}

// TestNVLinks_SeveralScans_ReadEndsOnce fails each query of a link's end after the first scan.
func TestNVLinks_SeveralScans_ReadEndsOnce(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	root.Use(t)
	library := native.New(root.Path)
	scan := func() (known, links int) {
		t.Helper()
		s, err := library.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		d, err := s.Device(0)
		if err != nil {
			t.Fatal(err)
		}
		all, err := d.NVLinks()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			if l.Version != 0 && l.Remote == nvml.RemoteSwitch {
				known++
			}
		}
		return known, len(all)
	}
	if known, links := scan(); known != 18 || links != 18 {
		t.Fatalf("%d of %d links are known", known, links)
	}
	simtest.Change(t, root, func(s *engine.State) {
		s.GPUs[0].LinksDown = []int{3}
		for _, query := range []string{"nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2"} {
			s.Faults = append(s.Faults, engine.Fault{Query: query, Code: nvml.Unknown})
		}
	})
	if known, links := scan(); known != 17 || links != 17 {
		t.Errorf("with one link down, %d of %d links are known, want 17", known, links)
	}
	simtest.Change(t, root, func(s *engine.State) { s.GPUs[0].LinksDown = nil })
	if known, links := scan(); known != 17 || links != 18 {
		t.Errorf("after its return, %d of %d links are known, want 17: its end may be another", known, links)
	}
	simtest.Change(t, root, func(s *engine.State) { s.Faults = nil })
	if known, links := scan(); known != 18 || links != 18 {
		t.Errorf("%d of %d links are known at the end", known, links)
	}
}

// machine returns the Machine of a simulated machine.
func machine(e interface {
	Update(func(*engine.State) error) error
}) conformancetest.Machine {
	return conformancetest.Machine{Hold: func(t *testing.T, gpuInstance, computeInstance int) func() {
		const pid = 4711
		p := engine.Process{PID: pid, Name: "holder", MemoryMiB: 16}
		if gpuInstance >= 0 {
			p.Place = &engine.Place{GPUInstance: gpuInstance, ComputeInstance: computeInstance}
		}
		simtest.Change(t, e, func(s *engine.State) { s.GPUs[0].Processes = append(s.GPUs[0].Processes, p) })
		return func() { simtest.Change(t, e, func(s *engine.State) { s.GPUs[0].Processes = nil }) }
	}}
}

// partitionable lists the profiles of machines with two GPUs that have MIG.
func partitionable(t *testing.T) (names []string) {
	for _, name := range profiles.Names() {
		p, err := profiles.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Board.MIGCapable && len(p.Slots) > 1 {
			names = append(names, name)
		}
	}
	if len(names) < 3 {
		t.Fatalf("profiles with MIG: %v", names)
	}
	return names
}

func TestPartition_Fake_Conforms(t *testing.T) {
	for _, name := range partitionable(t) {
		t.Run(name, func(t *testing.T) {
			e := simtest.Machine(t, name)
			conformancetest.Partition(t, nvmlfake.New(e), machine(e))
		})
	}
}

func TestPartition_SimulatedLibrary_Conforms(t *testing.T) {
	for _, name := range partitionable(t) {
		t.Run(name, func(t *testing.T) {
			root := simtest.Root(t, name, nil)
			root.Use(t)
			conformancetest.Partition(t, native.New(root.Path), machine(root))
		})
	}
}

// partitionFirstGPU creates two GPU instances and a process on the first GPU. One instance has two compute instances,
// the other has none.
func partitionFirstGPU(t *testing.T, s *engine.State) {
	g := &s.GPUs[0]
	if code := s.SetMIGMode(g, true); code != 0 {
		t.Fatal(code)
	}
	for _, start := range []int{0, 4} {
		if _, code := s.CreateInstance(g, 9, start); code != 0 {
			t.Fatal(code)
		}
	}
	for range 2 {
		if _, code := s.CreateCompute(g, g.Instances[0].ID, 0); code != 0 {
			t.Fatal(code)
		}
	}
	at := &engine.Place{GPUInstance: g.Instances[0].ID, ComputeInstance: 1}
	g.Processes = []engine.Process{{PID: 7, MemoryMiB: 1, Place: at}}
	s.GPUs[1].ResetHidden = true
	if code := s.SetMIGMode(&s.GPUs[1], true); code != nvml.ResetRequired {
		t.Fatal(code)
	}
}

func TestRun_PartitionedFake_Conforms(t *testing.T) {
	e := simtest.Machine(t, "hgx-h100")
	simtest.Change(t, e, func(s *engine.State) { partitionFirstGPU(t, s) })
	conformancetest.Run(t, nvmlfake.New(e), conformancetest.Options{GPUs: 8})
}

func TestRun_PartitionedSimulatedLibrary_Conforms(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	simtest.Change(t, root, func(s *engine.State) { partitionFirstGPU(t, s) })
	root.Use(t)
	conformancetest.Run(t, native.New(root.Path), conformancetest.Options{GPUs: 8, DevRoot: root.Path})
}

func TestSetMIGMode_ResetRequired_IsPending(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	simtest.Change(t, root, func(s *engine.State) { s.GPUs[0].ResetHidden = true })
	root.Use(t)
	for name, lib := range map[string]nvml.Library{"in process": nvmlfake.New(root.Engine), "library": native.New(root.Path)} {
		s, err := lib.Open()
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Device(0)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.SetMIGMode(true); !errors.Is(err, nvml.ResetRequired) {
			t.Errorf("%s: SetMIGMode = %v, want ResetRequired", name, err)
		}
		if current, pending, err := d.MIGMode(); current || !pending || err != nil {
			t.Errorf("%s: MIGMode = %v, pending %v, %v; want it pending", name, current, pending, err)
		}
		if err := d.SetMIGMode(false); err != nil {
			t.Errorf("%s: taking it back: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestHealth_FaultyGPU_IsReported checks both bindings on the same machine.
func TestHealth_FaultyGPU_IsReported(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	root.Use(t)
	both := map[string]nvml.Library{"fake": nvmlfake.NewRoot(root.Path), "library": native.New(root.Path)}
	healthy := nvml.Health{PCIeWidth: 16, PCIeMaxWidth: 16}
	for _, tc := range []struct {
		name   string
		change func(*engine.State, *engine.GPU)
		want   func(*nvml.Health)
	}{
		{"healthy", func(*engine.State, *engine.GPU) {}, func(*nvml.Health) {}},
		{"needs a reset", func(_ *engine.State, g *engine.GPU) { g.Recovery = 1 }, func(h *nvml.Health) { h.Recovery = 1 }},
		{"memory", func(_ *engine.State, g *engine.GPU) { g.Recovery, g.RemapFailed = 0, true },
			func(h *nvml.Health) { h.Recovery, h.RemapFailed = 0, true }},
		{"memory in MIG mode", func(_ *engine.State, g *engine.GPU) { g.MIGEnabled, g.MIGPending = true, true },
			func(h *nvml.Health) { h.RemapFailed, h.CorrectableRows, h.UncorrectableRows = false, -1, -1 }},
		{"a pending row", func(_ *engine.State, g *engine.GPU) {
			g.MIGEnabled, g.MIGPending, g.RemapFailed, g.RemapPending, g.RemappedRows = false, false, false, true, 3
		},
			func(h *nvml.Health) { h.RemapPending, h.CorrectableRows, h.UncorrectableRows = true, 0, 3 }},
		{"on-chip memory", func(_ *engine.State, g *engine.GPU) { g.SRAMThreshold = true }, func(h *nvml.Health) { h.SRAMThresholdExceeded = true }},
		{"unrepairable", func(_ *engine.State, g *engine.GPU) { g.UnrepairableMemory = true }, func(h *nvml.Health) { h.UnrepairableMemory = true }},
		{"slow", func(_ *engine.State, g *engine.GPU) { g.Slowdowns = nvml.PowerBrakeSlowdown | nvml.HardwareSlowdown },
			func(h *nvml.Health) { h.Slowdowns = nvml.PowerBrakeSlowdown | nvml.HardwareSlowdown }},
		{"few lanes", func(_ *engine.State, g *engine.GPU) { g.LostLanes = 8 }, func(h *nvml.Health) { h.PCIeWidth = 8 }},
		{"few lanes for work", func(_ *engine.State, g *engine.GPU) { g.Utilization = 90 }, func(h *nvml.Health) { h.Busy = true }},
		{"many errors", func(_ *engine.State, g *engine.GPU) { g.CorrectableErrors, g.UncorrectableErrors = 1<<40, 2 },
			func(h *nvml.Health) { h.CorrectableErrors, h.UncorrectableErrors = 1<<40, 2 }},
		{"queries that fail", func(s *engine.State, _ *engine.GPU) {
			for _, query := range []string{"nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetMaxPcieLinkWidth"} {
				s.Faults = append(s.Faults, engine.Fault{Query: query, Code: nvml.Unknown})
			}
			s.AbsentSymbols = []string{"nvmlDeviceGetUnrepairableMemoryFlag_v1", "nvmlDeviceGetCurrentClocksEventReasons"}
		}, func(h *nvml.Health) {
			h.SRAMThresholdExceeded, h.UnrepairableMemory, h.Slowdowns, h.PCIeMaxWidth, h.Busy = false, false, 0, 0, false
		}},
	} {
		simtest.Change(t, root, func(s *engine.State) { tc.change(s, &s.GPUs[1]) })
		tc.want(&healthy)
		for name, library := range both {
			withGPU(t, library, 1, func(s nvml.Session, d nvml.Device) {
				if got, err := d.Health(); err != nil || got != healthy {
					t.Errorf("%s, %s: %+v, %v; want %+v", tc.name, name, got, err, healthy)
				}
			})
		}
	}
}

func withGPU(t *testing.T, library nvml.Library, index int, do func(nvml.Session, nvml.Device)) {
	t.Helper()
	s, err := library.Open()
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Device(index)
	if err != nil {
		t.Fatal(err)
	}
	do(s, d)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestEvents_XID_ReachesEachSetOnce raises events on a machine that both bindings watch, as two processes do.
func TestEvents_XID_ReachesEachSetOnce(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	root.Use(t)
	xid := func(slot int, number uint64, gi, ci int) engine.Event {
		return engine.Event{Slot: slot, Type: engine.EventXID, Data: number, GPUInstance: gi, ComputeInstance: ci}
	}
	raise := func(events ...engine.Event) {
		simtest.Change(t, root, func(s *engine.State) {
			for _, e := range events {
				s.Raise(e)
			}
		})
	}
	raise(xid(1, 31, -1, -1)) // before registration: lost
	simtest.Change(t, root, func(s *engine.State) {
		s.Faults = []engine.Fault{{Query: "nvmlDeviceRegisterEvents", GPU: s.GPUs[3].UUID, Code: nvml.NotSupported}}
	})
	sets := map[string]nvml.EventSet{}
	for name, library := range map[string]nvml.Library{"fake": nvmlfake.NewRoot(root.Path), "library": native.New(root.Path)} {
		s, err := library.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var devices []nvml.Device
		for _, index := range []int{1, 3, 2} {
			d, err := s.Device(index)
			if err != nil {
				t.Fatal(err)
			}
			devices = append(devices, d)
		}
		if set, err := s.Events(devices[1:2]); !errors.Is(err, nvml.NotSupported) {
			t.Errorf("%s: Events of a GPU that refuses: %v, %v", name, set, err)
		}
		set, err := s.Events(devices)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		if r := set.Refused(); len(r) != 1 || !errors.Is(r[1], nvml.NotSupported) {
			t.Errorf("%s: refused: %v", name, r)
		}
		sets[name] = set
	}
	raise(xid(0, 13, -1, -1), xid(3, 13, -1, -1), xid(2, 94, 7, 1), engine.Event{Slot: 1, Type: engine.EventDoubleBitECC})
	raise(xid(1, nvml.UnknownXID, 3, -1))
	want := []nvml.Event{
		{Device: 2, XID: 94, GPUInstance: 7, ComputeInstance: 1}, {Device: 0, XID: nvml.UnknownXID, GPUInstance: 3, ComputeInstance: -1},
	}
	for name, set := range sets {
		for _, want := range want {
			if got, err := set.Wait(time.Minute); err != nil || got != want {
				t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
			}
		}
		if got, err := set.Wait(0); !errors.Is(err, nvml.Timeout) {
			t.Errorf("%s: %+v, %v; want Timeout", name, got, err)
		}
	}
	var waits sync.WaitGroup
	for name, set := range sets {
		waits.Go(func() {
			if got, err := set.Wait(time.Minute); err != nil || got.XID != 62 {
				t.Errorf("%s: while waiting: %+v, %v", name, got, err)
			}
		})
	}
	raise(xid(1, 62, -1, -1))
	waits.Wait()
	simtest.Change(t, root, func(s *engine.State) { s.GPUs[2].Lost = true; s.Raise(xid(2, 79, -1, -1)) })
	for name, set := range sets {
		if got, err := set.Wait(time.Minute); err != nil || got.XID != 79 {
			t.Errorf("%s: the event of the loss: %+v, %v", name, got, err)
		}
		for range 3 {
			if got, err := set.Wait(time.Minute); !errors.Is(err, nvml.GPUIsLost) {
				t.Errorf("%s: of a lost GPU: %+v, %v", name, got, err)
			}
		}
	}
}

// TestHealth_FieldHasCode_CostsThatFieldOnly gives the recovery action, and a counter, each code of NVML.
func TestHealth_FieldHasCode_CostsThatFieldOnly(t *testing.T) {
	root := simtest.Root(t, "hgx-h100", nil)
	root.Use(t)
	fake := simtest.Machine(t, "hgx-h100")
	for name, of := range map[string]struct {
		library nvml.Library
		machine interface {
			Update(func(*engine.State) error) error
		}
	}{"fake": {nvmlfake.New(fake), fake}, "library": {native.New(root.Path), root}} {
		for _, code := range []nvml.Code{
			nvml.InvalidArgument, nvml.NotSupported, nvml.NoPermission, nvml.NotFound, nvml.Timeout, nvml.GPUIsLost, nvml.ResetRequired,
			nvml.OperatingSystem, nvml.NotReady, nvml.Unknown,
		} {
			simtest.Change(t, of.machine, func(s *engine.State) {
				s.GPUs[0].RemapFailed, s.GPUs[0].CorrectableErrors = true, 7
				s.Faults = []engine.Fault{{Query: "nvmlDeviceGetFieldValues/230", Code: code}, {Query: "nvmlDeviceGetFieldValues/4", Code: code}}
			})
			h, err := health(t, of.library)
			if code == nvml.GPUIsLost || code == nvml.ResetRequired {
				if !errors.Is(err, code) {
					t.Errorf("%s, %v: %v", name, code, err)
				}
				continue
			}
			if err != nil || h.Recovery != nvml.RecoveryUnsupported || h.UncorrectableErrors != nvml.NotReported ||
				!h.RemapFailed || h.CorrectableErrors != 7 {
				t.Errorf("%s, %v: %+v, %v", name, code, h, err)
			}
		}
	}
}

func health(t *testing.T, l nvml.Library) (nvml.Health, error) {
	t.Helper()
	s, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	d, err := s.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	return d.Health()
}

// implementation is one of NVML, over a simulated machine of its own.
type implementation struct {
	name    string
	library nvml.Library
	machine interface {
		Update(func(*engine.State) error) error
	}
}

func implementations(t *testing.T) []implementation {
	t.Helper()
	root := simtest.Root(t, "hgx-h100", nil)
	root.Use(t)
	fake := simtest.Machine(t, "hgx-h100")
	return []implementation{{"fake", nvmlfake.New(fake), fake}, {"library", native.New(root.Path), root}}
}

// with calls do with the first GPU, of a driver with a CUDA version.
func (i implementation) with(t *testing.T, cuda int, do func(nvml.Device)) {
	t.Helper()
	simtest.Change(t, i.machine, func(s *engine.State) { s.Profile.Driver.CUDA = cuda })
	s, err := i.library.Open()
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	do(d)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestMIGComputeMode_DriversBeforeAndSince_SetOrRefuse sets the mode of a MIG device in both libraries.
func TestMIGComputeMode_DriversBeforeAndSince_SetOrRefuse(t *testing.T) {
	for _, i := range implementations(t) {
		uuid := ""
		simtest.Change(t, i.machine, func(s *engine.State) {
			g := &s.GPUs[0]
			s.SetMIGMode(g, true)
			i, _ := s.CreateInstance(g, 19, 4)
			c, _ := s.CreateCompute(g, i.ID, 0)
			uuid = c.UUID
		})
		for _, cuda := range []int{13000, 13030} {
			i.with(t, cuda, func(d nvml.Device) {
				setErr := d.SetMIGComputeMode(uuid, nvml.ComputeExclusiveProcess)
				mode, err := d.MIGComputeMode(uuid)
				switch {
				case cuda < 13030 && (!errors.Is(setErr, nvml.NotSupported) || !errors.Is(err, nvml.NotSupported)):
					t.Errorf("%s, CUDA %d: %v, %v", i.name, cuda, setErr, err)
				case cuda >= 13030 && (setErr != nil || err != nil || mode != nvml.ComputeExclusiveProcess):
					t.Errorf("%s, CUDA %d: %v, %v, %v", i.name, cuda, setErr, mode, err)
				}
			})
		}
	}
}

// TestMemoryLimit_DriversBeforeAndSince_SetOrRefuse sets the limit of a cgroup, for which a directory stands.
func TestMemoryLimit_DriversBeforeAndSince_SetOrRefuse(t *testing.T) {
	cgroup, other := t.TempDir(), t.TempDir()
	const limit = 4 << 30
	for _, i := range implementations(t) {
		i.with(t, 13030, func(d nvml.Device) {
			_, err := d.MemoryLimit(cgroup)
			if set := d.SetMemoryLimit(cgroup, limit); !errors.Is(err, nvml.NotSupported) || !errors.Is(set, nvml.NotSupported) {
				t.Errorf("%s, before CUDA 13.4: %v, %v", i.name, err, set)
			}
		})
		i.with(t, 13040, func(d nvml.Device) {
			_, before := d.MemoryLimit(cgroup)
			set := d.SetMemoryLimit(cgroup, limit)
			got, after := d.MemoryLimit(cgroup)
			_, another := d.MemoryLimit(other)
			if !errors.Is(before, nvml.NotFound) || set != nil || after != nil || got != limit || !errors.Is(another, nvml.NotFound) {
				t.Errorf("%s: %v, %v, %d, %v, %v", i.name, before, set, got, after, another)
			}
			simtest.Change(t, i.machine, func(s *engine.State) {
				if l := s.GPUs[0].Limits; len(l) != 1 || l[0].Soft != 0 { // Each container of a claim has the claim's limit.
					t.Errorf("%s: %+v guarantees memory", i.name, l)
				}
			})
			if err := d.SetMemoryLimit(cgroup, 1<<50); !errors.Is(err, nvml.InvalidArgument) {
				t.Errorf("%s: more than the GPU has: %v", i.name, err)
			}
			if err := d.SetMemoryLimit(filepath.Join(cgroup, "none"), limit); !errors.Is(err, nvml.OperatingSystem) {
				t.Errorf("%s: a cgroup that does not exist: %v", i.name, err)
			}
		})
	}
}
