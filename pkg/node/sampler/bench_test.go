// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"syscall"
	"testing"

	"gpu-dra-driver/internal/nvml/native"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// BenchmarkRead_EightGPUsWithSevenPartitions reads through the C ABI. It reports the part of a core that a reading each
// Interval costs; the budget is 1 %.
func BenchmarkRead_EightGPUsWithSevenPartitions(b *testing.B) {
	r := simtest.Root(b, "hgx-h100", nil)
	r.Use(b)
	var targets []Target
	simtest.Change(b, r, func(s *engine.State) {
		for n := range s.GPUs {
			g := &s.GPUs[n]
			t := Target{GPU: gpu.GPU{PCIAddress: g.Address, UUID: g.UUID}}
			if code := s.SetMIGMode(g, true); code != 0 {
				b.Fatal(code)
			}
			for range 7 {
				i, code := s.CreateInstance(g, 19, engine.AnyStart)
				if code != 0 {
					b.Fatal(code)
				}
				c, code := s.CreateCompute(g, i.ID, 0)
				if code != 0 {
					b.Fatal(code)
				}
				t.Partitions = append(t.Partitions, Partition{Name: c.UUID, UUID: c.UUID, GPUInstance: i.ID, ComputeInstance: c.ID})
			}
			targets = append(targets, t)
		}
	})
	library := native.New(r.Path)
	// As the watcher of XIDs does while claims are prepared.
	session, err := library.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	s := New(Options{Library: library, Locks: NewLocks(), ProcRoot: "/proc"})
	before := cpuSeconds(b)
	for b.Loop() {
		if err := s.read(b.Context(), targets); err != nil {
			b.Fatal(err)
		}
	}
	if got := s.Snapshot(); len(got.GPUs) != 8 || len(got.GPUs[7].Partitions) != 7 || got.GPUs[7].Partitions[6].SM != 0 {
		b.Fatalf("%+v", got)
	}
	b.ReportMetric(100*(cpuSeconds(b)-before)/float64(b.N)/Interval.Seconds(), "%core")
}

func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
