// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
)

// viewOf returns the machine's first GPU.
func viewOf(t *testing.T, e *Engine) View {
	t.Helper()
	s, err := e.State()
	if err != nil {
		t.Fatal(err)
	}
	return View{State: s, GPU: &s.GPUs[0], Board: s.Profile.Board}
}

// add adds a process, or fails the test.
func add(t *testing.T, s *State, p Process) {
	t.Helper()
	if err := s.AddProcess(&s.GPUs[0], p); err != nil {
		t.Fatal(err)
	}
}

// TestLoad_Partitions_AddUpToBoard loads two partitions, changes one load, and compares the multiprocessors that are busy in
// each with those of the board, and the energy with the power.
func TestLoad_Partitions_AddUpToBoard(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	var places []*Place
	change(t, e, func(s *State) {
		if code := s.SetMIGMode(&s.GPUs[0], true); code != 0 {
			t.Fatal(code)
		}
		for _, profile := range []int{19, 9} {
			i, code := s.CreateInstance(&s.GPUs[0], profile, AnyStart)
			if code != 0 {
				t.Fatal(code)
			}
			p, _ := s.Profile.Board.MIG.Profile(profile)
			c, code := s.CreateCompute(&s.GPUs[0], i.ID, p.ComputeInstances()[len(p.ComputeInstances())-1].ID)
			if code != 0 {
				t.Fatal(code)
			}
			places = append(places, &Place{i.ID, c.ID})
		}
	})
	for _, loads := range [][2]int{{80, 25}, {30, 25}, {0, 0}} {
		change(t, e, func(s *State) {
			for n, load := range loads {
				add(t, s, Process{PID: uint32(10 + n), Load: load, Place: places[n]})
			}
		})
		v := viewOf(t, e)
		begin := time.UnixMilli(v.Meter.SinceMS)
		end := begin.Add(3 * time.Second)
		busy := func(instance int) (ratio, multiprocessors float64) {
			a, code := v.GPMAt(instance, begin)
			b, codeB := v.GPMAt(instance, end)
			percent, codeM := a.Metric(b, GPMMultiprocessor)
			if code != 0 || codeB != 0 || codeM != 0 {
				t.Fatal(code, codeB, codeM)
			}
			return percent / 100, percent / 100 * float64(a.Multiprocessors)
		}
		sum := 0.0
		for n, load := range loads {
			ratio, multiprocessors := busy(places[n].GPUInstance)
			if math.Abs(ratio-float64(load)/100) > 1e-9 {
				t.Errorf("loads %v: partition %d is busy to %v", loads, n, ratio)
			}
			sum += multiprocessors
		}
		if _, board := busy(-1); math.Abs(sum-board) > 1e-9 {
			t.Errorf("loads %v: %v multiprocessors are busy in the partitions, %v on the board", loads, sum, board)
		}
		if got, want := v.MeterAt(end).EnergyMJ-v.MeterAt(begin).EnergyMJ, uint64(v.DrawW())*3000; got != want {
			t.Errorf("loads %v: %d mJ in 3 s at %d W, want %d", loads, got, v.DrawW(), want)
		}
		if traffic := v.TrafficAt(end); traffic.PCIeSent < v.TrafficAt(begin).PCIeSent || traffic.NVLink > 0 {
			t.Errorf("loads %v: traffic %+v, want none of NVLink in MIG mode", loads, traffic)
		}
		change(t, e, func(s *State) { s.GPUs[0].Meter.SinceMS -= 1000 }) // The loads last for a second.
	}
	if v := viewOf(t, e); v.TrafficAt(time.Now()).PCIeSent == 0 || v.MeterAt(time.Now()).Busy == 0 {
		t.Error("the loads that ended left no traffic")
	}
}

func TestLoad_MoreThanDevice_ProcessesShareIt(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	change(t, e, func(s *State) {
		for pid := range uint32(2) {
			add(t, s, Process{PID: pid + 1, Load: 75})
		}
	})
	v := viewOf(t, e)
	loads, code := v.ProcessLoads()
	if code != 0 || len(loads) != 2 || loads[0] != 50 || loads[1] != 50 || v.LoadPercent() != 100 || v.DrawW() != v.Board.Power.Default {
		t.Errorf("two processes with 75 %% each: %v, %v, the GPU %d %% at %d W", loads, code, v.LoadPercent(), v.DrawW())
	}
	now := time.UnixMilli(v.Meter.SinceMS)
	if got := v.TrafficAt(now.Add(time.Second)).NVLink - v.TrafficAt(now).NVLink; got != nvlinkRate {
		t.Errorf("%d bytes over NVLink in a second, want %d", got, uint64(nvlinkRate))
	}
}

func TestLoad_BoardWithoutCounters_Refuses(t *testing.T) {
	e, _ := machine(t, "dgx-a100-40")
	change(t, e, func(s *State) {
		if code := s.SetMIGMode(&s.GPUs[0], true); code != 0 {
			t.Fatal(code)
		}
	})
	v := viewOf(t, e)
	if _, code := v.GPMAt(-1, time.Now()); code != nvml.NotSupported {
		t.Errorf("performance counters of an A100: %v", code)
	}
	if _, code := v.ProcessLoads(); code != nvml.NotSupported {
		t.Errorf("utilization of processes in MIG mode: %v", code)
	}
	if err := v.AddProcess(v.GPU, Process{PID: 1, Load: 101}); err == nil {
		t.Error("a load of 101 % is accepted")
	}
}

// TestLoad_Workload_IsThatOfAProcess compares the readings of a GPU with a workload with those of one with a process.
func TestLoad_Workload_IsThatOfAProcess(t *testing.T) {
	e, _ := machine(t, "hgx-h100")
	read := func(do func(*GPU)) (int, int, int, uint64) {
		change(t, e, func(s *State) {
			s.GPUs[0].Processes, s.GPUs[0].Workloads = nil, nil
			do(&s.GPUs[0])
		})
		v := viewOf(t, e)
		since := time.UnixMilli(v.Meter.SinceMS)
		return v.LoadPercent(), v.DrawW(), v.HeatC(), v.MeterAt(since.Add(time.Second)).Busy - v.MeterAt(since).Busy
	}
	idle, _, _, _ := read(func(*GPU) {})
	load, watts, heat, busy := read(func(g *GPU) { g.Processes = []Process{{PID: 1, Load: 60}} })
	asLoad, asWatts, asHeat, asBusy := read(func(g *GPU) { g.Workloads = []Workload{{Owner: "a/b", Load: 60}} })
	if idle != 0 || load != 60 || asLoad != load || asWatts != watts || asHeat != heat || asBusy != busy {
		t.Errorf("a process: %d %%, %d W, %d °C, %d; a workload: %d %%, %d W, %d °C, %d", load, watts, heat, busy, asLoad, asWatts, asHeat, asBusy)
	}
	over := viewOf(t, e)
	over.GPU.Workloads = append(over.GPU.Workloads, Workload{Load: 101})
	if err := over.State.validate(); err == nil {
		t.Error("a load of 101 % is valid")
	}
}
