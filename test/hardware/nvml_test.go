// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/native"
)

// TestNVML_Answers_Noted notes what NVML returns to queries of which the driver uses the code.
func TestNVML_Answers_Noted(t *testing.T) {
	_, s, ok := machine(t)
	if !ok {
		return
	}
	began := time.Now()
	lib := gonvml.New(gonvml.WithLibraryPath(library()))
	if ret := lib.Init(); ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	note("time.init.micros", time.Since(began).Microseconds())
	defer func() {
		began := time.Now()
		_ = lib.Shutdown()
		note("time.shutdown.micros", time.Since(began).Microseconds())
	}()
	began = time.Now()
	d, ret := lib.DeviceGetHandleByIndex(s.GPUs[0].Index)
	note("time.handle.micros", time.Since(began).Microseconds())
	if ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	code := func(name string, value any, ret gonvml.Return) {
		if ret != gonvml.SUCCESS {
			note("nvml."+name, fmt.Sprintf("code %d, %v", int(ret), ret))
			return
		}
		note("nvml."+name, value)
	}
	for _, address := range []string{"0000:fe:1f.7", "0000:fe:1f.0", "0000:00:07.0", "0000:00:00.0", "00000000:00:06.0", "nonsense", ""} {
		_, ret := lib.DeviceGetHandleByPciBusId(address)
		code("handle.address "+address, "found", ret)
	}
	for _, uuid := range []string{"GPU-00000000-0000-0000-0000-000000000000", "MIG-00000000-0000-0000-0000-000000000000", "nonsense"} {
		_, ret := lib.DeviceGetHandleByUUID(uuid)
		code("handle.uuid "+uuid, "found", ret)
	}
	_, ret = lib.DeviceGetHandleByIndex(99)
	code("handle.index 99", "found", ret)
	persistence, ret := d.GetPersistenceMode()
	code("persistence", persistence, ret)
	virtual, ret := d.GetVirtualizationMode()
	code("virtualization", virtual, ret)
	hostMode, ret := d.GetHostVgpuMode()
	code("host-vgpu-mode", hostMode, ret)
	fabric, ret := d.GetGpuFabricInfo()
	code("fabric", fmt.Sprintf("%+v", fabric), ret)
	fabricV, ret := d.GetGpuFabricInfoV().V2()
	code("fabric.v2", fmt.Sprintf("%+v", fabricV), ret)
	for link := range 18 {
		state, ret := d.GetNvLinkState(link)
		code(fmt.Sprintf("nvlink.%d", link), state, ret)
	}
	gpm, ret := d.GpmQueryDeviceSupport()
	code("gpm", gpm.IsSupportedDevice, ret)
	mode, ret := d.GetComputeMode()
	code("compute-mode", mode, ret)
	active, ret := d.GetDisplayActive()
	code("display-active", active, ret)
	display, ret := d.GetDisplayMode()
	code("display-mode", display, ret)
	current, pending, ret := d.GetMigMode()
	code("mig-mode", []int{current, pending}, ret)
	count, ret := d.GetMaxMigDeviceCount()
	code("max-mig-devices", count, ret)
	for i := range 3 {
		_, ret := d.GetMigDeviceHandleByIndex(i)
		code(fmt.Sprintf("mig-handle.%d", i), "found", ret)
	}
	_, ret = d.GetGpuInstanceById(1)
	code("gpu-instance.1", "found", ret)
	info, ret := d.GetGpuInstanceProfileInfo(gonvml.GPU_INSTANCE_PROFILE_7_SLICE)
	code("profile.7", fmt.Sprintf("%+v", info), ret)
	if ret == gonvml.SUCCESS {
		instances, ret := d.GetGpuInstances(&info)
		code("gpu-instances.7", len(instances), ret)
		remaining, ret := d.GetGpuInstanceRemainingCapacity(&info)
		code("remaining.7", remaining, ret)
		places, ret := d.GetGpuInstancePossiblePlacements(&info)
		code("placements.7", fmt.Sprintf("%+v", places), ret)
	}
	attributes, ret := d.GetAttributes()
	code("attributes", fmt.Sprintf("%+v", attributes), ret)
	addressing, ret := d.GetAddressingMode()
	code("addressing", addressing.Value, ret)
	memory, ret := d.GetMemoryInfo_v2()
	code("memory", fmt.Sprintf("%+v", memory), ret)
	memory1, ret := d.GetMemoryInfo()
	code("memory.v1", fmt.Sprintf("%+v", memory1), ret)
	serial, ret := d.GetSerial()
	code("serial.length", len(serial), ret)
	module, ret := d.GetModuleId()
	code("module", module, ret)
	retired, ret := d.GetRetiredPagesPendingStatus()
	code("retired-pending", retired, ret)
	correctable, uncorrectable, isPending, failure, ret := d.GetRemappedRows()
	code("remapped", fmt.Sprint(correctable, uncorrectable, isPending, failure), ret)
	sram, ret := d.GetSramEccErrorStatus()
	code("sram", fmt.Sprintf("%+v", sram), ret)
	unrepairable, ret := d.GetUnrepairableMemoryFlag_v1()
	code("unrepairable", unrepairable.BUnrepairableMemory, ret)
	reasons, ret := d.GetCurrentClocksEventReasons()
	code("clocks-event-reasons", reasons, ret)
	types, ret := d.GetSupportedEventTypes()
	code("event-types", fmt.Sprintf("%#x", types), ret)
	compute, ret := d.GetComputeRunningProcesses()
	code("compute-processes", fmt.Sprintf("%+v", compute), ret)
	samples, ret := d.GetProcessUtilization(0)
	code("process-utilization", len(samples), ret)
	// Every field there is, because the codes differ by field.
	for id := uint32(1); id < 300; id++ {
		f := []gonvml.FieldValue{{FieldId: id}}
		if ret := d.GetFieldValues(f); ret != gonvml.SUCCESS {
			code(fmt.Sprintf("field.%d", id), nil, ret)
			continue
		}
		if ret := gonvml.Return(f[0].NvmlReturn); ret != gonvml.SUCCESS {
			code(fmt.Sprintf("field.%d", id), nil, ret)
			continue
		}
		note(fmt.Sprintf("nvml.field.%d", id), fmt.Sprintf("type %d, %s", f[0].ValueType, hex.EncodeToString(f[0].Value[:])))
	}
}

func library() string {
	for _, path := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/nvidia/lib64", "lib64"} {
		at := filepath.Join(*driverRoot, path, "libnvidia-ml.so.1")
		if _, err := os.Stat(at); err == nil {
			return at
		}
	}
	return "libnvidia-ml.so.1"
}

func TestNVML_Symbols_Noted(t *testing.T) {
	if _, _, ok := machine(t); !ok {
		return
	}
	f, err := elf.Open(library())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "nvml") && s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	note("nvml.symbols", names)
}

func TestNVML_Session_Times(t *testing.T) {
	if _, _, ok := machine(t); !ok {
		return
	}
	for range 3 {
		lib := native.New(*driverRoot)
		began := time.Now()
		session, err := lib.Open()
		if err != nil {
			t.Fatal(err)
		}
		opened := time.Now()
		d, err := session.Device(0)
		if err != nil {
			t.Fatal(err)
		}
		found := time.Now()
		_, err = d.Processes()
		listed := time.Now()
		_ = session.Close()
		note("time.session.micros", map[string]any{
			"open": opened.Sub(began).Microseconds(), "device": found.Sub(opened).Microseconds(), "processes": listed.Sub(found).Microseconds(),
			"close": time.Since(listed).Microseconds(), "processes-outcome": outcome(err),
		})
	}
}

// processesVariable makes this test's binary list the processes that NVML reports.
const processesVariable = "GPU_DRA_HARDWARE_PROCESSES"

func printProcesses(driverRoot string) error {
	session, err := native.New(driverRoot).Open()
	if err != nil {
		return err
	}
	defer session.Close()
	d, err := session.Device(0)
	if err != nil {
		return err
	}
	all, err := d.Processes()
	memory, memoryErr := d.ProcessMemory()
	used, usedErr := d.ProcessUtilization(0)
	fmt.Printf("pid %d: processes %+v (%s), memory %+v (%s), utilization %+v (%s)\n", os.Getpid(), all, outcome(err), memory, outcome(memoryErr), used, outcome(usedErr))
	return nil
}

func TestNVML_Processes_InNamespaces(t *testing.T) {
	_, _, ok := machine(t)
	if !ok || !hasCUDA() {
		return
	}
	r, a := client{MiB: 512}.start(t, "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
	note("processes.client", outcome(a.err()))
	r.send("spin", 2_000_000_000)
	pid := fmt.Sprint(r.cmd.Process.Pid)
	for name, flags := range map[string]uintptr{"same": 0, "new": syscall.CLONE_NEWPID} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), processesVariable+"="+*driverRoot)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		out, err := output(cmd, 20*time.Second)
		note("processes."+name+"-namespace", strings.ReplaceAll(fmt.Sprintf("%s | %s", outcome(err), out), pid, "CLIENT"))
	}
	_ = r.next(10 * time.Second)
}

// TestXID_IllegalAccess_Reported makes a process of its own access address 0. That ends this process alone.
func TestXID_IllegalAccess_Reported(t *testing.T) {
	lib, _, ok := machine(t)
	if !ok || !hasCUDA() {
		return
	}
	session, err := lib.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	d, err := session.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	set, err := session.Events([]nvml.Device{d})
	if err != nil {
		note("xid.events", err.Error())
		return
	}
	defer set.Close()
	kernelLog, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		defer kernelLog.Close()
		_, _ = kernelLog.Seek(0, 2)
	}
	r, a := client{}.start(t, "CUDA_MPS_PIPE_DIRECTORY=/nowhere")
	note("xid.client", outcome(a.err()))
	note("xid.client.fault", outcome(r.run("fault", 0, 10*time.Second).err()))
	note("xid.client.then", outcome(r.run("add", 0, 10*time.Second).err()))
	event, err := set.Wait(3 * time.Second)
	note("xid.event", fmt.Sprintf("%+v, %s", event, outcome(err)))
	if kernelLog == nil {
		return
	}
	var lines []string
	buffer := make([]byte, 8192)
	for {
		n, err := unix.Read(int(kernelLog.Fd()), buffer)
		if err != nil || n <= 0 {
			break
		}
		if _, text, ok := bytes.Cut(buffer[:n], []byte(";")); ok {
			lines = append(lines, strings.TrimSpace(string(text)))
		}
	}
	note("xid.kernel-log", lines)
}
