// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
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
	all := answers(lib, d)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		note("nvml."+name, all[name])
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
