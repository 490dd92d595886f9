// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
	"gpu-dra-driver/sim/smi"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func facts(t *testing.T, profile string, change func(*engine.State)) smi.Facts {
	t.Helper()
	return smi.FromState(state(t, profile, change))
}

func state(t *testing.T, profile string, change func(*engine.State)) *engine.State {
	t.Helper()
	machine := simtest.Machine(t, profile)
	simtest.Change(t, machine, change)
	s, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), -update rewrites it:\n%s", path, diff)
	}
}

func busy(s *engine.State) {
	g := &s.GPUs[0]
	g.Utilization, g.TemperatureC, g.PowerW, g.ComputeMode = 97, 64, 412, 3
	_ = s.AddProcess(g, engine.Process{PID: 3829683, Name: "/usr/bin/python", MemoryMiB: 16046})
	if len(s.GPUs) > 1 {
		s.GPUs[1].Lost = true
	}
}

func TestRun_NoArguments_PrintsTable(t *testing.T) {
	now := time.Date(2026, 11, 2, 3, 4, 5, 0, time.UTC)
	for name, f := range map[string]smi.Facts{
		"table-hgx-h100.txt": facts(t, "hgx-h100", func(s *engine.State) {
			for i := 3; i < 8; i++ {
				s.Remove(&s.GPUs[i])
			}
			busy(s)
		}),
		"table-t4-1.txt": facts(t, "t4-1", func(*engine.State) {}),
	} {
		var b strings.Builder
		var all []int
		for i := range f.GPUs {
			all = append(all, i)
		}
		smi.Table(&b, f, all, now)
		for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n")[1:] {
			if len(line) != 91 && line != "" {
				t.Errorf("%s: line %d is %d columns wide, the real table's are 91", name, i+2, len(line))
			}
		}
		golden(t, name, b.String())
	}
}

// onHost writes only a machine's state to a root.
func onHost(t *testing.T, profile string) string {
	t.Helper()
	p, err := profiles.Load(profile)
	if err != nil {
		t.Fatal(err)
	}
	s, err := engine.New(p, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := engine.Open(root, nil).Create(s); err != nil {
		t.Fatal(err)
	}
	return root
}

func follow(string) func(*engine.State) error { return nil }

func program(root string, args ...string) (string, int) {
	var out, errOut strings.Builder
	code := smi.Run(args, root, follow, &out, &errOut)
	return out.String() + errOut.String(), code
}

func TestRun_List_PrintsGPUs(t *testing.T) {
	got, code := program(onHost(t, "l40s-4"), "-L")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, got)
	}
	golden(t, "list-l40s-4.txt", got)
}

func TestRun_Query_PrintsCSV(t *testing.T) {
	root := onHost(t, "hgx-h100")
	for want, args := range map[string][]string{
		"index, name, memory.total [MiB]\n7, NVIDIA H100 80GB HBM3, 81559 MiB\n": {"--query-gpu=index,name,memory.total", "--format=csv", "-i", "7"},
		"NVIDIA H100 80GB HBM3, 81559, 69.00\n":                                  {"--query-gpu", "gpu_name, memory.total,power.draw", "--format", "csv,noheader,nounits", "--id=0"},
		"00000000:43:00.0, 9.0, Disabled, Default, 580.126.09\n":                 {"--query-gpu=pci.bus_id,compute_cap,mig.mode.current,compute_mode,driver_version", "--format=csv, noheader", "-i", "0000:43:00.0"},
	} {
		if got, code := program(root, args...); code != 0 || got != want {
			t.Errorf("%v: exit %d, got %q, want %q", args, code, got, want)
		}
	}
}

func TestRun_InvalidCommandLine_ReturnsError(t *testing.T) {
	root := onHost(t, "t4-1")
	for _, args := range [][]string{{"--what"}, {"--query-gpu=index"}, {"--query-gpu=colour", "--format=csv"}} {
		if got, code := program(root, args...); code != 2 || got == "" {
			t.Errorf("%v: exit %d, %q", args, code, got)
		}
	}
	if _, code := program(root, "-i", "9"); code != 6 {
		t.Errorf("an unknown GPU: exit %d", code)
	}
	if got, code := program(root, "-h"); code != 0 || !strings.Contains(got, "--query-gpu") {
		t.Errorf("-h: exit %d, %q", code, got)
	}
}

func TestRun_Reset_EndsFaultsOfIdleGPUs(t *testing.T) {
	root := onHost(t, "hgx-h100")
	machine := engine.Open(root, nil)
	simtest.Change(t, machine, func(s *engine.State) {
		for n, recovery := range []int{1, 2, 4} {
			g := &s.GPUs[n]
			g.Recovery, g.RemapPending, g.RemapFailed = recovery, true, true
			g.CorrectableErrors, g.SRAMThreshold, g.LinkErrors = 7, true, []uint64{1}
		}
		busy(s)
	})
	if got, code := program(root, "-r", "-i", "0"); code == 0 || !strings.Contains(got, "In use by another client") {
		t.Errorf("a GPU in use: exit %d, %q", code, got)
	}
	for _, id := range []string{"1", "2"} {
		if got, code := program(root, "--gpu-reset", "-i", id); code != 0 || !strings.Contains(got, "successfully reset") {
			t.Errorf("GPU %s: exit %d, %q", id, code, got)
		}
	}
	s, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []int{1, 2, 0} {
		type faults struct {
			recovery, rows   int
			pending, failed  bool
			errors           uint64
			sram, linkErrors bool
		}
		g := s.GPUs[n]
		got := faults{g.Recovery, g.RemappedRows, g.RemapPending, g.RemapFailed, g.CorrectableErrors, g.SRAMThreshold, g.LinkErrors != nil}
		if n == 0 && got != (faults{want, 0, true, true, 7, true, true}) || n > 0 && got != (faults{want, 1, false, true, 0, true, false}) {
			t.Errorf("GPU %d: %+v", n, got)
		}
	}
}

func TestRun_InContainer_ShowsOnlyItsGPUs(t *testing.T) {
	f := smi.Static(state(t, "hgx-h100", busy))
	container := t.TempDir()
	firmware, err := f.Firmware()
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{
		"lib/firmware/nvidia/580.126.09/gsp_ga10x.bin": firmware, "dev/nvidia2": nil, "dev/nvidia5": nil, "dev/nvidiactl": nil,
	} {
		at := filepath.Join(container, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, code := program(container, "-L")
	want := "GPU 0: NVIDIA H100 80GB HBM3 (UUID: " + f.GPUs[2].UUID + ")\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: " + f.GPUs[5].UUID + ")\n"
	if code != 0 || got != want {
		t.Errorf("exit %d, got %q, want %q", code, got, want)
	}
	if got, code := program(t.TempDir(), "-L"); code != 9 || !strings.Contains(got, "couldn't communicate") {
		t.Errorf("without driver files: exit %d, %q", code, got)
	}
	for _, node := range []string{"nvidia2", "nvidia5"} {
		if err := os.Remove(filepath.Join(container, "dev", node)); err != nil {
			t.Fatal(err)
		}
	}
	if got, code := program(container, "-L"); code != 6 || got != "No devices were found\n" {
		t.Errorf("without nodes: exit %d, %q", code, got)
	}
}

func TestFirmware_RoundTrip_KeepsFacts(t *testing.T) {
	idle := smi.Static(state(t, "hgx-h100", func(*engine.State) {}))
	working := smi.Static(state(t, "hgx-h100", busy))
	a, err := idle.Firmware()
	if err != nil {
		t.Fatal(err)
	}
	b, err := working.Firmware()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(a), string(b)); diff != "" {
		t.Errorf("work changes the firmware:\n%s", diff)
	}
	got, err := smi.DecodeFirmware(a)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(idle, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzDecodeFirmware(f *testing.F) {
	f.Add([]byte("gpusim placeholder firmware\n{}"))
	f.Add([]byte("gpusim placeholder firmware\n{\"gpus\":[{\"minor\":-1,\"processes\":[{}]}]}"))
	f.Add([]byte("ELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		facts, err := smi.DecodeFirmware(b)
		if err != nil {
			return
		}
		var all []int
		for i := range facts.GPUs {
			all = append(all, i)
		}
		var out strings.Builder
		smi.Table(&out, facts, all, time.Time{})
		smi.List(&out, facts, all)
	})
}
