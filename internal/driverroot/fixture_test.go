// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const version = "580.126.09"

// device is the GPU at minor 1 of the test driver root.
var device = Device{Name: "gpu-0000-1b-00-0", PCIAddress: "0000:1b:00.0", UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff", Minor: 1}

// newEnv makes a driver root with two GPUs, and a /proc for it. Making device nodes needs CAP_MKNOD.
func newEnv(t testing.TB) (dir string, o Options) {
	t.Helper()
	dir = t.TempDir()
	install(t, dir, version)
	nodes := map[string]uint32{
		"nvidia0": uint32(unix.Mkdev(195, 0)), "nvidia1": uint32(unix.Mkdev(195, 1)), "nvidiactl": uint32(unix.Mkdev(195, 255)),
		"nvidia-uvm": uint32(unix.Mkdev(510, 0)), "nvidia-uvm-tools": uint32(unix.Mkdev(510, 1)),
	}
	for name, rdev := range nodes {
		mknod(t, filepath.Join(dir, "root/dev", name), rdev)
	}
	for minor, address := range []string{"0000:0f:00.0", "0000:1b:00.0"} {
		write(t, filepath.Join(dir, "proc/driver/nvidia/gpus", address, "information"),
			fmt.Sprintf("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 1\nBus Location: \t %s\nDevice Minor: \t %d\n", address, minor))
	}
	write(t, filepath.Join(dir, "proc/devices"), "Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n")
	return dir, Options{
		DriverRoot: filepath.Join(dir, "root"), HostDriverRoot: "/run/nvidia/driver",
		ProcRoot: filepath.Join(dir, "proc"), HookPath: "/var/lib/kubelet/plugins/gpu.nvidia.com/nvidia-cdi-hook",
	}
}

// install writes the user space and the kernel module of a driver version.
func install(t testing.TB, dir, version string) {
	t.Helper()
	lib := filepath.Join(dir, "root/usr/lib64")
	if err := os.RemoveAll(lib); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"} {
		write(t, filepath.Join(lib, name+"."+version), "")
		if err := os.Symlink(name+"."+version, filepath.Join(lib, name+".1")); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "root/usr/bin/nvidia-smi"), "")
	if err := os.Chmod(filepath.Join(dir, "root/usr/bin/nvidia-smi"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "proc/driver/nvidia/version"), "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+
		version+"  Release Build  (dvs-builder@U22)  Wed Jan  7 22:59:20 UTC 2026\nGCC version:  gcc version 12.2.0\n")
}

func mknod(t testing.TB, path string, rdev uint32) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(rdev)); err != nil {
		t.Fatalf("make %s (tests of the driver root need CAP_MKNOD): %v", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
