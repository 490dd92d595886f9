// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package simtest

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
)

func initialised(t *testing.T, r *DriverRoot) gonvml.Interface {
	t.Helper()
	r.Use(t)
	lib := gonvml.New(gonvml.WithLibraryPath(r.Library))
	ok(t, "Init", lib.Init())
	t.Cleanup(func() { ok(t, "Shutdown", lib.Shutdown()) })
	return lib
}

// loadCUDA loads the root's libcuda.so.1, which the dynamic linker finds in a container.
func loadCUDA(t *testing.T, r *DriverRoot) {
	t.Helper()
	cuda := dl.New(filepath.Join(filepath.Dir(r.Library), "libcuda.so.1"), dl.RTLD_LAZY)
	if err := cuda.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cuda.Close() })
}

// TestLibrary_NoCUDA_VersionIsNotFound has a root that the dynamic linker does not know, such as that of a driver container.
func TestLibrary_NoCUDA_VersionIsNotFound(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	lib := initialised(t, r)
	if _, ret := lib.SystemGetCudaDriverVersion_v2(); ret != gonvml.ERROR_LIBRARY_NOT_FOUND {
		t.Errorf("without libcuda.so.1: %v", ret)
	}
	loadCUDA(t, r)
	if v, ret := lib.SystemGetCudaDriverVersion_v2(); v != 13000 || ret != gonvml.SUCCESS {
		t.Errorf("with libcuda.so.1: %d, %v", v, ret)
	}
}

func ok(t *testing.T, what string, ret gonvml.Return) {
	t.Helper()
	if ret != gonvml.SUCCESS {
		t.Fatalf("%s: %v", what, ret)
	}
}

func first(t *testing.T, lib gonvml.Interface) gonvml.Device {
	t.Helper()
	d, ret := lib.DeviceGetHandleByIndex(0)
	ok(t, "DeviceGetHandleByIndex", ret)
	return d
}

// answer is the result of a go-nvml query.
func answer[T any](v T, ret gonvml.Return) any {
	if ret != gonvml.SUCCESS {
		return ret
	}
	return v
}

func TestLibrary_Queries_AnswerFromProfile(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	lib := initialised(t, r)
	loadCUDA(t, r)
	d := first(t, lib)
	s, err := r.State()
	if err != nil {
		t.Fatal(err)
	}
	g := s.GPUs[0]
	peer, ret := lib.DeviceGetHandleByIndex(4)
	ok(t, "peer", ret)
	for query, c := range map[string]struct{ got, want any }{
		"driver":         {answer(lib.SystemGetDriverVersion()), "580.126.09"},
		"nvml":           {answer(lib.SystemGetNVMLVersion()), "13.580.126.09"},
		"cuda":           {answer(lib.SystemGetCudaDriverVersion_v2()), 13000},
		"count":          {answer(lib.DeviceGetCount()), 8},
		"name":           {answer(d.GetName()), "NVIDIA H100 80GB HBM3"},
		"uuid":           {answer(d.GetUUID()), g.UUID},
		"serial":         {answer(d.GetSerial()), g.Serial},
		"minor":          {answer(d.GetMinorNumber()), 0},
		"brand":          {answer(d.GetBrand()), gonvml.BRAND_NVIDIA},
		"architecture":   {answer(d.GetArchitecture()), gonvml.DeviceArchitecture(gonvml.DEVICE_ARCH_HOPPER)},
		"cores":          {answer(d.GetNumGpuCores()), 16896},
		"bus width":      {answer(d.GetMemoryBusWidth()), uint32(5120)},
		"memory":         {answer(d.GetMemoryInfo()), gonvml.Memory{Total: 81559 << 20, Free: (81559 - 454) << 20, Used: 454 << 20}},
		"bar1":           {answer(d.GetBAR1MemoryInfo()), gonvml.BAR1Memory{Bar1Total: 131072 << 20, Bar1Free: 131071 << 20, Bar1Used: 1 << 20}},
		"temperature":    {answer(d.GetTemperature(gonvml.TEMPERATURE_GPU)), uint32(30)},
		"power":          {answer(d.GetPowerUsage()), uint32(69000)},
		"power limit":    {answer(d.GetPowerManagementLimit()), uint32(700000)},
		"clock":          {answer(d.GetMaxClockInfo(gonvml.CLOCK_SM)), uint32(1980)},
		"pstate":         {answer(d.GetPerformanceState()), gonvml.Pstates(0)},
		"fan":            {answer(d.GetFanSpeed()), gonvml.ERROR_NOT_SUPPORTED},
		"compute mode":   {answer(d.GetComputeMode()), gonvml.ComputeMode(0)},
		"persistence":    {answer(d.GetPersistenceMode()), gonvml.FEATURE_ENABLED},
		"MIG devices":    {answer(d.GetMaxMigDeviceCount()), 0},
		"attributes":     {answer(d.GetAttributes()), gonvml.ERROR_NOT_SUPPORTED},
		"link 17":        {answer(d.GetNvLinkState(17)), gonvml.FEATURE_ENABLED},
		"link 18":        {answer(d.GetNvLinkState(18)), gonvml.ERROR_INVALID_ARGUMENT},
		"link version":   {answer(d.GetNvLinkVersion(0)), uint32(4)},
		"ancestor":       {answer(d.GetTopologyCommonAncestor(peer)), gonvml.TOPOLOGY_SYSTEM},
		"affinity":       {answer(peer.GetCpuAffinity(1)), []uint{0xffff0000}},
		"vbios":          {answer(d.GetVbiosVersion()), "96.00.74.00.01"},
		"by an unknown":  {answer(lib.DeviceGetHandleByUUID("GPU-no")), gonvml.ERROR_NOT_FOUND},
		"gpm":            {answer(d.GpmQueryDeviceSupport()), gonvml.GpmSupport{Version: 1, IsSupportedDevice: 1}},
		"out of range":   {answer(lib.DeviceGetHandleByIndex(8)), gonvml.ERROR_INVALID_ARGUMENT},
		"set ECC mode":   {d.SetEccMode(1), gonvml.ERROR_NOT_SUPPORTED},
		"events":         {answer(d.GetSupportedEventTypes()), uint64(0xff9f)},
		"excluded":       {answer(lib.GetExcludedDeviceCount()), 0},
		"processes none": {len(answer(d.GetComputeRunningProcesses()).([]gonvml.ProcessInfo)), 0},
	} {
		if got, want := fmt.Sprint(c.got), fmt.Sprint(c.want); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

// TestLibrary_FaultyGPU_FieldsSay reads fields of a GPU with faults; the scope names the NVLink.
func TestLibrary_FaultyGPU_FieldsSay(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	lib := initialised(t, r)
	d := first(t, lib)
	Change(t, r, func(s *engine.State) {
		g := &s.GPUs[0]
		g.CorrectableErrors, g.UncorrectableErrors, g.RemappedRows, g.RemapPending = 5, 2, 3, true
		g.LinkErrors, g.LinksDown, g.Recovery = make([]uint64, 18), []int{2}, 1
		g.LinkErrors[7] = 40
		g.Meter = engine.Meter{SinceMS: 1 << 50, EnergyMJ: 1000, SoftwareThermalMS: 1, HardwareThermalMS: 20, PowerBrakeMS: 300}
	})
	const invalid, unsupported, allLinks = 1 << 62, 1 << 63, 0xffffffff
	for _, c := range []struct {
		field, scope uint32
		want         uint64
	}{
		{3, 0, 5}, {4, 0, 2}, {142, 0, 0}, {143, 0, 3}, {144, 0, 1}, {145, 0, 0},
		{138, 7, 0}, {141, allLinks, 0}, {138, 18, invalid}, {146, 7, 7}, {147, 0, 18},
		{161, 7, 40}, {163, 6, 0}, {161, 18, invalid}, {161, allLinks, invalid}, {164, 7, 26562}, {164, 2, 0}, {165, 7, 1}, {165, 2, 0},
		{173, 0, 0}, {183, 0, 0}, {197, 0, 0}, {201, 7, unsupported}, {214, 7, unsupported}, // of NVLink 5
		{226, 0, 1}, {227, 0, 0}, {230, 0, 1}, {269, 0, 1e6}, {270, 0, 20e6}, {271, 0, 300e6}, {83, 0, 1000}, {191, 0, 1000},
		{9999, 0, invalid},
	} {
		v := []gonvml.FieldValue{{FieldId: c.field, ScopeId: c.scope}}
		ok(t, "GetFieldValues", d.GetFieldValues(v))
		got := binary.NativeEndian.Uint64(v[0].Value[:])
		switch gonvml.Return(v[0].NvmlReturn) {
		case gonvml.ERROR_INVALID_ARGUMENT:
			got = invalid
		case gonvml.ERROR_NOT_SUPPORTED:
			got = unsupported
		}
		if got != c.want {
			t.Errorf("field %d of scope %d: %d, want %d (%v)", c.field, c.scope, got, c.want, gonvml.Return(v[0].NvmlReturn))
		}
	}
	for query, c := range map[string]struct{ got, want any }{
		"energy":     {answer(d.GetTotalEnergyConsumption()), 1000},
		"thermal":    {violation(d.GetViolationStatus(gonvml.PERF_POLICY_THERMAL)), 21_000_000},
		"any":        {violation(d.GetViolationStatus(gonvml.PERF_POLICY_TOTAL_BASE_CLOCKS)), 321_000_000},
		"link":       {answer(d.GetNvLinkErrorCounter(7, gonvml.NVLINK_ERROR_DL_REPLAY)), 40},
		"ECC":        {answer(d.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.VOLATILE_ECC)), 2},
		"histogram":  {answer(d.GetRowRemapperHistogram()), gonvml.RowRemapperHistogramValues{Max: 637, High: 3}},
		"repair":     {answer(d.GetRepairStatus()), gonvml.RepairStatus{Version: gonvml.STRUCT_VERSION(gonvml.RepairStatus{}, 1)}},
		"few memory": {answer(d.GetUnrepairableMemoryFlag_v1()), gonvml.UnrepairableMemoryStatus_v1{}},
	} {
		if got, want := fmt.Sprint(c.got), fmt.Sprint(c.want); got != want {
			t.Errorf("%s: got %s, want %s", query, got, want)
		}
	}
}

func violation(v gonvml.ViolationTime, ret gonvml.Return) any { return answer(v.ViolationTime, ret) }

func TestLibrary_EachName_FindsGPU(t *testing.T) {
	r := Root(t, "l40s-4", nil)
	lib := initialised(t, r)
	s, err := r.State()
	if err != nil {
		t.Fatal(err)
	}
	g := s.GPUs[2]
	for name, find := range map[string]func() (gonvml.Device, gonvml.Return){
		"UUID":                func() (gonvml.Device, gonvml.Return) { return lib.DeviceGetHandleByUUID(g.UUID) },
		"serial":              func() (gonvml.Device, gonvml.Return) { return lib.DeviceGetHandleBySerial(g.Serial) },
		"NVML's bus ID":       func() (gonvml.Device, gonvml.Return) { return lib.DeviceGetHandleByPciBusId(g.BusID()) },
		"the kernel's":        func() (gonvml.Device, gonvml.Return) { return lib.DeviceGetHandleByPciBusId(g.Address) },
		"one without domain":  func() (gonvml.Device, gonvml.Return) { return lib.DeviceGetHandleByPciBusId(g.Address[5:]) },
		"its place in a list": func() (gonvml.Device, gonvml.Return) { return lib.DeviceGetHandleByIndex(2) },
	} {
		d, ret := find()
		if ret != gonvml.SUCCESS {
			t.Errorf("by %s: %v", name, ret)
			continue
		}
		if uuid, ret := d.GetUUID(); uuid != g.UUID {
			t.Errorf("by %s: found %s, %v", name, uuid, ret)
		}
	}
}

func TestLibrary_MachineChanges_Follows(t *testing.T) {
	r := Root(t, "hgx-h100", nil)
	lib := initialised(t, r)
	d := first(t, lib)
	Change(t, r, func(s *engine.State) {
		if err := s.AddProcess(&s.GPUs[0], engine.Process{PID: 4711, Name: "train", MemoryMiB: 100}); err != nil {
			t.Error(err)
		}
		s.GPUs[1].Lost = true
		s.Faults = []engine.Fault{{Query: "nvmlDeviceGetName", Code: nvml.ResetRequired, Times: 1}}
	})
	if ps, ret := d.GetComputeRunningProcesses(); ret != gonvml.SUCCESS || len(ps) != 1 || ps[0].Pid != 4711 || ps[0].UsedGpuMemory != 100<<20 {
		t.Errorf("processes %v, %v", ps, ret)
	}
	if name, ret := lib.SystemGetProcessName(4711); name != "train" {
		t.Errorf("process name %q, %v", name, ret)
	}
	if _, ret := lib.DeviceGetHandleByIndex(1); ret != gonvml.ERROR_GPU_IS_LOST {
		t.Errorf("lost GPU: %v", ret)
	}
	if _, ret := d.GetName(); ret != gonvml.ERROR_RESET_REQUIRED {
		t.Errorf("first call: %v", ret)
	}
	if _, ret := d.GetName(); ret != gonvml.SUCCESS {
		t.Errorf("second call: %v", ret)
	}
	Change(t, r, func(s *engine.State) { s.DriverLoaded = false })
	if _, ret := d.GetUUID(); ret != gonvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("without the driver: %v", ret)
	}
}

func TestLibrary_Header_HasEveryFunction(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg", "nvml", "nvml.h"))
	if err != nil {
		t.Fatal(err)
	}
	have := symbols(t, Root(t, "t4-1", nil).Library)
	declared := regexp.MustCompile(`DECLDIR\s+(nvml\w+)\s*\(`).FindAllSubmatch(header, -1)
	if len(declared) < 400 {
		t.Fatalf("only %d declarations found in nvml.h", len(declared))
	}
	for _, m := range declared {
		if name := string(m[1]); !slices.Contains(have, name) {
			t.Errorf("%s is missing: add it to sim/libnvidiaml/names.txt and run go generate", name)
		}
	}
}

func symbols(t *testing.T, path string) []string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var defined []string
	for _, s := range all {
		if s.Section != elf.SHN_UNDEF {
			defined = append(defined, s.Name)
		}
	}
	return defined
}

// TestLibrary_FromC_Works runs testdata/abi.c in separate processes, for arguments that go-nvml never passes.
func TestLibrary_FromC_Works(t *testing.T) {
	program := filepath.Join(t.TempDir(), "abi")
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-o", program, "testdata/abi.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("compiling testdata/abi.c: %v\n%s", err, out)
	}
	run := func(t *testing.T, library, scene string, as ...*syscall.Credential) {
		t.Helper()
		cmd := exec.Command(program, library, scene)
		for _, user := range as {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
		}
		cmd.Env = append(os.Environ(), "GPUSIM_ROOT=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	t.Run("arguments", func(t *testing.T) { run(t, Root(t, "hgx-h100", nil).Library, "arguments") })
	t.Run("a root mounted elsewhere", func(t *testing.T) {
		r := Root(t, "hgx-h100", nil)
		moved := filepath.Join(t.TempDir(), "driver-root")
		if err := os.Rename(r.Path, moved); err != nil {
			t.Fatal(err)
		}
		run(t, filepath.Join(moved, driverroot.LibDir, "libnvidia-ml.so.1"), "arguments")
	})
	t.Run("no driver", func(t *testing.T) {
		r := Root(t, "t4-1", nil)
		Change(t, r, func(s *engine.State) { s.DriverLoaded = false })
		run(t, r.Library, "no-driver")
	})
	t.Run("a broken state file", func(t *testing.T) {
		r := Root(t, "t4-1", nil)
		if err := os.WriteFile(filepath.Join(r.Path, engine.Dir, "state.json"), []byte("{"), 0o644); err != nil {
			t.Fatal(err)
		}
		run(t, r.Library, "broken")
	})
	t.Run("a state that cannot be written", func(t *testing.T) {
		r := Root(t, "hgx-h100", nil)
		for _, dir := range []string{filepath.Dir(program), r.Path} {
			reachable(t, dir)
		}
		run(t, r.Library, "no-permission", &syscall.Credential{Uid: 65534, Gid: 65534})
	})
	t.Run("partitions", func(t *testing.T) { run(t, Root(t, "hgx-h100", nil).Library, "partitions") })
	t.Run("a symbol left out", func(t *testing.T) {
		r := Root(t, "t4-1", func(o *driverroot.Options) { o.Without = []string{"nvmlDeviceGetMemoryInfo_v2"} })
		run(t, r.Library, "without-memory-v2")
	})
}

// reachable gives all users access to a directory of the test.
func reachable(t *testing.T, dir string) {
	t.Helper()
	for top := filepath.Clean(os.TempDir()); dir != top && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
