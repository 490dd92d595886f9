// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/boxtest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

func TestMain(m *testing.M) { boxtest.Main(m) }

func gpusim(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(args, &out)
	return out.String(), err
}

func TestRun_UpToDown_Succeeds(t *testing.T) {
	donor := simtest.Root(t, "t4-1", nil) // for its built library and nvidia-smi
	lib, smi := donor.Library, filepath.Join(donor.Path, driverroot.BinDir, "nvidia-smi")
	root := filepath.Join(t.TempDir(), "node")

	out, err := gpusim(t, "up", "--profile", "hgx-h100", "--gpus=2", "--root", root, "--lib", lib, "--smi", smi, "--without-symbol", "nvmlDeviceGetNumGpuCores")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"hgx-h100, driver 580.126.09 loaded, CUDA 13.0, boot 1", "0000:43:00.0", "library lacks nvmlDeviceGetNumGpuCores"} {
		if !strings.Contains(out, want) {
			t.Errorf("up does not print %q:\n%s", want, out)
		}
	}
	for _, args := range [][]string{
		{"inject", "--root", root, "lose", "0"},
		{"inject", "process", "1", "--root", root, "--pid", "42", "--memory", "512"},
		{"inject", "recovery", "reset", "1", "--root", root},
		{"inject", "remap", "failed", "1", "--root", root},
		{"inject", "xid", "31", "1", "--pid", "812", "--name", "python", "--count", "2", "--root", root},
		{"inject", "xid", "62", "--root", root},
		{"inject", "fail", "nvmlDeviceGetName", "--code", "GPU_IS_LOST", "--times", "3", "--root", root},
	} {
		if _, err := gpusim(t, args...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	out, err = gpusim(t, "list", "--root", root)
	for _, want := range []string{"lost", "512 MiB", "ok, asks for reset, remap failed, 1 processes", "fault: nvmlDeviceGetName on every GPU answers"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("list does not print %q: %v\n%s", want, err, out)
		}
	}
	if got, want := kernelLog(t, root), []string{
		"3,0,T,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
		"3,1,T,-;NVRM: Xid (PCI:0000:43:00): 154, pid='<unknown>', name=<unknown>, " +
			"GPU recovery action changed from 0x0 (none) to 0x1 (reset)",
		"3,2,T,-;NVRM: Xid (PCI:0000:43:00): 64, pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap a row.",
		"3,3,T,-;NVRM: Xid (PCI:0000:43:00): 31, pid=812, name=python, Ch 00000008",
		"3,4,T,-;NVRM: Xid (PCI:0000:43:00): 31, pid=812, name=python, Ch 00000008",
		"3,5,T,-;NVRM: Xid (PCI:0000:1b:00): 62, pid='<unknown>', name=<unknown>, Ch 00000008",
	}; !slices.Equal(got, want) {
		t.Errorf("the kernel's log:\n%s", cmp.Diff(want, got))
	}
	out, err = gpusim(t, "reboot", "--root", root)
	if got := kernelLog(t, root); len(got) > 0 {
		t.Errorf("the kernel's log after a reboot: %v", got)
	}
	if err != nil || !strings.Contains(out, "boot 2") || strings.Contains(out, "lost") || strings.Contains(out, "fault:") {
		t.Errorf("reboot: %v\n%s", err, out)
	}
	if _, err := gpusim(t, "down", "--root", root); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(root); !os.IsNotExist(err) {
		t.Errorf("the root is left: %v", err)
	}
}

// kernelLog returns the lines of the machine's kernel log, with T for times.
func kernelLog(t *testing.T, root string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, driverroot.KernelLog))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		lines = append(lines, regexp.MustCompile(`^(\d+,\d+),\d+,`).ReplaceAllString(strings.TrimSuffix(line, "\n"), "$1,T,"))
	}
	return lines
}

func TestList_NoRoot_ShowsProfiles(t *testing.T) {
	out, err := gpusim(t, "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range profiles.Names() {
		if !strings.Contains(out, name) {
			t.Errorf("no %s in\n%s", name, out)
		}
	}
}

func TestRun_Help_DescribesEachVerb(t *testing.T) {
	for name, v := range verbs() {
		out, err := gpusim(t, name, "--help")
		if !errors.Is(err, flag.ErrHelp) || !strings.Contains(out, v.about) || !strings.Contains(out, "-root") {
			t.Errorf("%s --help: %v\n%s", name, err, out)
		}
	}
	if out, err := gpusim(t); err != nil || !strings.Contains(out, "gpusim reboot") {
		t.Errorf("gpusim alone: %v\n%s", err, out)
	}
}

func TestRun_InvalidCommandLine_ReturnsRemedy(t *testing.T) {
	empty := t.TempDir()
	for says, args := range map[string][]string{
		"gpusim --help lists them":       {"start"},
		"--root is required":             {"down"},
		"--profile is required":          {"up", "--root", empty},
		"gpusim up --profile":            {"list", "--root", empty},
		"nothing was removed":            {"down", "--root", empty},
		"unexpected \"x\"":               {"reboot", "--root", empty, "x"},
		"gpusim inject --help":           {"inject", "--root", empty},
		"flag provided but not defined":  {"list", "--rot", empty},
		"no profile \"h9\": choose one":  {"up", "--root", empty, "--profile", "h9"},
		"go build -buildmode=c-shared -": {"up", "--root", empty, "--profile", "t4-1", "--lib", "/nowhere"},
	} {
		if _, err := gpusim(t, args...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: got %v, want an error that says %q", args, err, says)
		}
	}
}

// injected runs a command line on a machine without a root directory.
func injected(t *testing.T, s *engine.State, args ...string) error {
	t.Helper()
	var got error
	machine := simtest.Machine(t, "hgx-h100")
	in, err := parseInjection(verbs()["inject"], append([]string{"--root", "x"}, args...), &strings.Builder{})
	if err != nil {
		return err
	}
	var raised []engine.Event
	got = machine.Update(func(s *engine.State) error {
		err := in.apply(s)
		raised = s.Raised
		return err
	})
	after, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	*s = *after
	s.Raised = raised
	return got
}

func TestInject_EachFault_ChangesMachine(t *testing.T) {
	cgroup := t.TempDir()
	cgroupID, err := engine.CgroupAt(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	xid31 := engine.Event{Slot: 2, Type: engine.EventXID, Data: 31, GPUInstance: -1, ComputeInstance: -1, PID: 7, Process: "x"}
	tests := map[string]struct {
		args  []string
		check func(s *engine.State) any
		want  any
	}{
		"lose":      {[]string{"lose", "2"}, func(s *engine.State) any { return s.GPUs[2].Lost }, true},
		"remove":    {[]string{"remove", "0000:1b:00.0"}, func(s *engine.State) any { return len(s.OnBus()) }, 7},
		"unload":    {[]string{"unload"}, func(s *engine.State) any { return s.DriverLoaded }, false},
		"hide-node": {[]string{"hide-node", "7"}, func(s *engine.State) any { return s.GPUs[7].NodeMissing }, true},
		"fail": {[]string{"fail", "nvmlDeviceGetName", "--code", "nvml_error_in_use", "--after", "1", "--times", "2"},
			func(s *engine.State) any { return s.Faults[0] }, engine.Fault{Query: "nvmlDeviceGetName", Code: nvml.InUse, After: 1, Times: 2}},
		"fail by number": {[]string{"fail", "*", "--code", "23"}, func(s *engine.State) any { return s.Faults[0] }, engine.Fault{Query: "*", Code: 23}},
		"slow": {[]string{"slow", "nvmlInit", "--latency", "2s"}, func(s *engine.State) any { return s.Faults[0] },
			engine.Fault{Query: "nvmlInit", Latency: 2 * time.Second}},
		"no-memory": {[]string{"no-memory", "0"}, func(s *engine.State) any { return s.Faults[0].Query + s.Faults[0].GPU },
			"nvmlDeviceGetMemoryInfoGPU-9be4b2f2-6f10-4bac-9f52-80c33786f624"},
		"process": {[]string{"process", "1", "--pid", "9", "--memory", "7", "--name", "x", "--graphics"}, func(s *engine.State) any { return s.GPUs[1].Processes[0] },
			engine.Process{PID: 9, MemoryMiB: 7, Name: "x", Graphics: true}},
		"process of a cgroup": {[]string{"process", "1", "--pid", "9", "--cgroup", cgroup}, func(s *engine.State) any { return s.GPUs[1].Processes[0] },
			engine.Process{PID: 9, Cgroup: cgroupID}},
		"xid": {[]string{"xid", "31", "2", "--pid", "7", "--name", "x", "--count", "2"}, func(s *engine.State) any { return s.Raised },
			[]engine.Event{xid31, xid31}},
		"ecc":           {[]string{"ecc", "correctable", "0", "--count", "5"}, func(s *engine.State) any { return s.GPUs[0].CorrectableErrors }, uint64(5)},
		"ecc sram":      {[]string{"ecc", "sram", "0"}, func(s *engine.State) any { return s.GPUs[0].SRAMThreshold }, true},
		"throttle":      {[]string{"throttle", "power-brake", "0"}, func(s *engine.State) any { return s.GPUs[0].Slowdowns }, nvml.Slowdown(0x88)},
		"pcie-width":    {[]string{"pcie-width", "4", "0"}, func(s *engine.State) any { return s.GPUs[0].LostLanes }, 12},
		"nvlink-errors": {[]string{"nvlink-errors", "9", "0", "--link", "3"}, func(s *engine.State) any { return s.GPUs[0].LinkErrors[3] }, uint64(9)},
		"set": {[]string{"set", "0", "--utilization", "50", "--temperature", "80", "--power", "300", "--compute-mode", "3", "--memory-utilization", "4"},
			func(s *engine.State) any {
				g := s.GPUs[0]
				return []int{g.Utilization, g.TemperatureC, g.PowerW, g.ComputeMode, g.MemoryUtil}
			}, []int{50, 80, 300, 3, 4}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var s engine.State
			if err := injected(t, &s, tt.args...); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, tt.check(&s)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestInject_InvalidArguments_ReturnsError(t *testing.T) {
	for says, args := range map[string][]string{
		"no fault \"explode\"":   {"explode", "0"},
		"needs a GPU":            {"lose"},
		"no GPU \"8\"":           {"lose", "8"},
		"takes no GPU":           {"unload", "0"},
		"needs an NVML function": {"fail", "GetName"},
		"UNKNOWN":                {"fail", "nvmlInit", "--code", "OOPS"},
		"slow needs --latency":   {"slow", "nvmlInit"},
		"needs --pid":            {"process", "0"},
		"--cgroup":               {"process", "0", "--pid", "1", "--cgroup", "/none"},
		"81105 MiB free":         {"process", "0", "--pid", "1", "--memory", "99999"},
		"no process 5":           {"end", "0", "--pid", "5"},
		"set needs a value":      {"set", "0"},
		"0 to 100":               {"set", "0", "--utilization", "101"},
		"no GPU instance 3":      {"xid", "31", "0", "--gi", "3"},
		"give a number":          {"xid", "many", "0"},
		"up to 100000":           {"xid", "31", "0", "--count", "100001"},
		"16 lanes":               {"pcie-width", "32", "0"},
		"give correctable":       {"ecc", "bad", "0"},
		"give none, thermal":     {"throttle", "hot", "0"},
		"has 18 NVLinks":         {"nvlink-errors", "1", "0", "--link", "18"},
		"must not be negative":   {"fail", "nvmlInit", "--after", "-1"},
	} {
		var s engine.State
		if err := injected(t, &s, args...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: got %v, want an error that says %q", args, err, says)
		}
	}
}

func TestInject_Undo_RestoresMachine(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	before, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"lose 3", "restore 3", "remove 4", "add slot4", "unload", "load", "hide-node 0", "show-node 0",
		"fail nvmlInit", "clear nvmlInit", "fail nvmlInit", "slow * --latency 1s", "clear", "process 2 --pid 8", "end 2 --pid 8",
		"ecc sram 1", "ecc uncorrectable 1", "ecc none 1", "remap pending 1", "remap none 1", "pcie-width 1 1", "pcie-width 16 1",
		"recovery imex 1", "recovery none 1"} {
		in, err := parseInjection(verbs()["inject"], append(strings.Fields(words), "--root", "x"), &strings.Builder{})
		if err != nil {
			t.Fatalf("%s: %v", words, err)
		}
		if err := machine.Update(in.apply); err != nil {
			t.Fatalf("%s: %v", words, err)
		}
	}
	after, err := machine.State()
	if err != nil {
		t.Fatal(err)
	}
	after = after.Clone()
	after.Generation = before.Generation
	want, _ := before.Encode()
	got, _ := after.Encode()
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestInject_RestoreLostGPU_HasNoPartitions also restores a GPU that is not lost, which changes nothing.
func TestInject_RestoreLostGPU_HasNoPartitions(t *testing.T) {
	machine := simtest.Machine(t, "hgx-h100")
	for _, step := range []struct {
		fault string
		want  int
	}{{"restore", 1}, {"lose", 1}, {"restore", 0}} {
		if err := machine.Update(func(s *engine.State) error {
			g := &s.GPUs[0]
			if len(g.Instances) == 0 {
				g.MIGEnabled, g.MIGPending = true, true
				if _, code := s.CreateInstance(g, 9, 0); code != 0 {
					return code
				}
			}
			if err := (injection{fault: step.fault, target: "0"}).apply(s); err != nil {
				return err
			}
			if n := len(g.Instances); n != step.want || !g.MIGEnabled {
				t.Errorf("%s: %d partitions, want %d", step.fault, n, step.want)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
