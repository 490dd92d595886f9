// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/simtest"
)

// TestCommon_UVMNotLoaded_LoadsIt has a machine after its boot, with a driver without nvidia-persistenced.
func TestCommon_UVMNotLoaded_LoadsIt(t *testing.T) {
	for name, sub := range map[string]string{"a root file system": "", "programs and libraries": "usr"} {
		t.Run(name, func(t *testing.T) {
			m := simtest.Root(t, "hgx-h100", func(o *driverroot.Options) { o.Bare = true })
			o := Options{DriverRoot: filepath.Join(m.Path, sub), ProcRoot: m.ProcRoot, HookPath: "/hook"}
			if _, err := New(o).Common(t.Context()); !errors.Is(err, ErrIncomplete) {
				t.Errorf("without a loader: %v", err)
			}
			o.Load = true
			r := New(o)
			edits := common(t, r)
			if got := nodesOf(edits); !slices.Contains(got, "/dev/nvidia-uvm c 510:0 rw") {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestLoad_CannotLoad_SaysWhatToRun(t *testing.T) {
	for name, test := range map[string]struct{ devices, program, want string }{
		"no program":         {"195 nvidia\n", "", "neither the driver root nor the node has"},
		"the program fails":  {"195 nvidia-frontend\n", "#!/bin/sh\necho not signed\nexit 1\n", "not signed"},
		"no driver":          {"10 misc\n", "#!/bin/sh\nexit 1\n", ""},
		"it is loaded":       {"195 nvidia\n510 nvidia-uvm\n", "#!/bin/sh\nexit 1\n", ""},
		"the program has it": {"195 nvidia\n", "#!/bin/sh\ntest \"$*\" = \"-u -c0\" && echo 510 nvidia-uvm >>${0%/bin/*}/proc/devices\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "proc/devices"), test.devices)
			if test.program != "" {
				write(t, filepath.Join(dir, "bin/nvidia-modprobe"), test.program)
				if err := os.Chmod(filepath.Join(dir, "bin/nvidia-modprobe"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			l := &Loader{Root: dir, ProcRoot: filepath.Join(dir, "proc")}
			err := l.Load(t.Context())
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "modprobe nvidia-uvm") {
				t.Error(err)
			}
			remove(t, filepath.Join(dir, "bin"))
			if again := l.Load(t.Context()); again == nil || again.Error() != err.Error() {
				t.Errorf("it was tried again at once: %v", again)
			}
		})
	}
}

func TestLoad_ProgramHangs_ReturnsWithContext(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "proc/devices"), "195 nvidia\n")
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "bin/nvidia-modprobe"), "#!/bin/sh\nread line <"+pipe+"\n")
	if err := os.Chmod(filepath.Join(dir, "bin/nvidia-modprobe"), 0o755); err != nil {
		t.Fatal(err)
	}
	l := &Loader{Root: dir, ProcRoot: filepath.Join(dir, "proc")}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Load(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // It waits for the program.
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if err := l.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "modprobe nvidia-uvm") {
		t.Error(err)
	}
}

// needsNodes is NVML, which opens only with the nodes in its /dev.
type needsNodes struct {
	dev   string
	nodes []string
}

func (n needsNodes) Open() (nvml.Session, error) {
	for _, name := range n.nodes {
		if _, err := os.Lstat(filepath.Join(n.dev, name)); err != nil {
			return nil, nvml.DriverNotLoaded
		}
	}
	return nil, nil
}

// TestLibrary_OneGPUHangs_OthersGetTheirNodes has a GPU whose file the driver does not answer.
func TestLibrary_OneGPUHangs_OthersGetTheirNodes(t *testing.T) {
	dir, o := newEnv(t)
	dev := filepath.Join(dir, "own/dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	hangs := filepath.Join(dir, "proc/driver/nvidia/gpus/0000:ff:00.0/information")
	write(t, hangs, "")
	remove(t, hangs)
	if err := unix.Mkfifo(hangs, 0o600); err != nil {
		t.Fatal(err)
	}
	l := Library{needsNodes{dev, []string{"nvidiactl", "nvidia0"}}, New(o), dev}
	for range 2 { // The second time nothing reads the file again.
		if _, err := l.Open(); err != nil {
			t.Fatal(err)
		}
	}
	w, err := os.OpenFile(hangs, os.O_WRONLY|unix.O_NONBLOCK, 0) // It fails without a reader, and ends the one there is.
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
}

func TestLibrary_NodesMissing_MakesThem(t *testing.T) {
	dir, o := newEnv(t)
	dev := filepath.Join(dir, "own/dev")
	write(t, filepath.Join(dev, "nvidia1"), "") // As it is found.
	write(t, filepath.Join(dir, "proc/driver/nvidia/params"), "DeviceFileGID: 44\nDeviceFileMode: 432\n")
	l := Library{needsNodes{dev, []string{"nvidiactl", "nvidia0", "nvidia1"}}, New(o), dev}
	if _, err := l.Open(); err != nil {
		t.Fatal(err)
	}
	for name, rdev := range map[string]uint64{"nvidiactl": unix.Mkdev(195, 255), "nvidia0": unix.Mkdev(195, 0), "nvidia1": 0} {
		var s unix.Stat_t
		if err := unix.Lstat(filepath.Join(dev, name), &s); err != nil || s.Rdev != rdev || rdev != 0 && (s.Mode&0o777 != 0o660 || s.Gid != 44) {
			t.Errorf("%s: %x %o of %d, %v", name, s.Rdev, s.Mode, s.Gid, err)
		}
	}
	remove(t, dev) // No node can be made.
	if _, err := l.Open(); !errors.Is(err, nvml.DriverNotLoaded) || !strings.Contains(err.Error(), "nvidia-modprobe -c0 -u") {
		t.Error(err)
	}
	l.OwnDev = ""
	if _, err := l.Open(); !errors.Is(err, nvml.DriverNotLoaded) || strings.Contains(err.Error(), "modprobe") {
		t.Error(err)
	}
}
