// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

// tree lists a directory's content, with device numbers and link targets.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		line := d.Type().String() + " " + rel
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			line += fmt.Sprintf(" %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		if target, err := os.Readlink(p); err == nil {
			line += " -> " + target
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func has(t *testing.T, dir string, lines ...string) {
	t.Helper()
	all := tree(t, dir)
	for _, l := range lines {
		if !slices.Contains(all, l) {
			t.Errorf("no %q in the root", l)
		}
	}
}

func TestUp_DeviceNodes_HaveDriverNumbers(t *testing.T) {
	r := simtest.Root(t, "hgx-h100", nil)
	has(t, r.Path, "Dc--------- dev/nvidia0 195:0", "Dc--------- dev/nvidia7 195:7", "Dc--------- dev/nvidiactl 195:255",
		"Dc--------- dev/nvidia-modeset 195:254", "Dc--------- dev/nvidia-uvm 510:0", "Dc--------- dev/nvidia-uvm-tools 510:1")
	b, err := os.ReadFile(filepath.Join(r.ProcRoot, "devices"))
	if err != nil || !strings.Contains(string(b), "\n195 nvidiactl\n") || !strings.Contains(string(b), "\n510 nvidia-uvm\n") {
		t.Errorf("/proc/devices: %v\n%s", err, b)
	}
}

func TestUp_Sysfs_HasRootsAndNUMANodes(t *testing.T) {
	for _, name := range profiles.Names() {
		r := simtest.Root(t, name, nil)
		s, err := r.State()
		if err != nil {
			t.Fatal(err)
		}
		sys := deviceattribute.WithFSFromRoot(r.SysRoot)
		for i := range s.GPUs {
			slot := s.Slot(&s.GPUs[i])
			root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(slot.Address, sys)
			if err != nil || *root.Value.StringValue != slot.Path[0] {
				t.Errorf("%s: GPU %s: root %v, %v; want %s", name, slot.Address, root.Value, err, slot.Path[0])
			}
			numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(slot.Address, deviceattribute.ScalarAttribute, sys)
			if slot.NUMANode < 0 {
				if err == nil {
					t.Errorf("%s: GPU %s has a NUMA node: %v", name, slot.Address, numa.Value)
				}
			} else if err != nil || *numa.Value.IntValue != int64(slot.NUMANode) {
				t.Errorf("%s: GPU %s: NUMA node %v, %v; want %d", name, slot.Address, numa.Value, err, slot.NUMANode)
			}
		}
	}
}

// TestUp_PCIFiles_HaveIDsAndMemory reads the configuration space and the address ranges as NVIDIA's programs do.
func TestUp_PCIFiles_HaveIDsAndMemory(t *testing.T) {
	r := simtest.Root(t, "hgx-h100", nil)
	s, err := r.State()
	if err != nil {
		t.Fatal(err)
	}
	starts := map[uint64]bool{}
	for i := range s.GPUs {
		dir := filepath.Join(r.SysRoot, "bus/pci/devices", s.GPUs[i].Address)
		config, err := os.ReadFile(filepath.Join(dir, "config"))
		if err != nil || len(config) != 256 {
			t.Fatalf("config: %d bytes, %v", len(config), err)
		}
		// Vendor, device, class with revision, and subsystem.
		got := []uint32{binary.LittleEndian.Uint32(config), binary.LittleEndian.Uint32(config[8:]), binary.LittleEndian.Uint32(config[0x2c:])}
		want := []uint32{s.Profile.Board.DeviceID()&0xffff0000 | 0x10de, 0x030200a1, s.Profile.Board.SubsystemID()}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("config of %s (-want +got)\n%s", s.GPUs[i].Address, diff)
		}
		resource, err := os.ReadFile(filepath.Join(dir, "resource"))
		if err != nil {
			t.Fatal(err)
		}
		var start, end, flags uint64
		const memory = 0x200
		if _, err := fmt.Sscanf(string(resource), "0x%x 0x%x 0x%x", &start, &end, &flags); err != nil || end <= start || flags&memory == 0 || starts[start] {
			t.Errorf("resource of %s: %q, %v", s.GPUs[i].Address, resource, err)
		}
		starts[start] = true
	}
}

func TestFollow_MachineChanges_RootFollows(t *testing.T) {
	r := simtest.Root(t, "hgx-h100", nil)
	before := tree(t, r.Path)
	gone := []string{
		"Dc--------- dev/nvidia3 195:3", "---------- proc/driver/nvidia/gpus/0000:61:00.0/information",
		"d--------- sys/devices/pci0000:59/0000:59:01.0/0000:5a:00.0/0000:5b:00.0/0000:61:00.0",
		"L--------- sys/bus/pci/devices/0000:61:00.0 -> ../../../devices/pci0000:59/0000:59:01.0/0000:5a:00.0/0000:5b:00.0/0000:61:00.0",
	}
	has(t, r.Path, gone...)

	simtest.Change(t, r, func(s *engine.State) { s.Remove(&s.GPUs[3]) })
	for _, l := range tree(t, r.Path) {
		if slices.Contains(gone, l) || strings.Contains(l, "0000:61:00.0") {
			t.Errorf("%q is still there after the GPU was removed", l)
		}
	}
	simtest.Change(t, r, func(s *engine.State) { s.Add(&s.GPUs[3]) })
	if diff := cmp.Diff(before, tree(t, r.Path)); diff != "" {
		t.Errorf("the GPU is back, and the root is another:\n%s", diff)
	}

	simtest.Change(t, r, func(s *engine.State) { s.DriverLoaded, s.GPUs[0].NodeMissing = false, true })
	if _, err := os.Stat(filepath.Join(r.ProcRoot, "driver", "nvidia")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("/proc/driver/nvidia without a driver: %v", err)
	}
	if _, err := os.Stat(filepath.Join(r.Path, "dev", "nvidia0")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the hidden node: %v", err)
	}

	boot, err := os.ReadFile(r.BootIDFile)
	if err != nil {
		t.Fatal(err)
	}
	simtest.Change(t, r, (*engine.State).Reboot)
	if diff := cmp.Diff(before, tree(t, r.Path)); diff != "" {
		t.Errorf("after a reboot the root is another:\n%s", diff)
	}
	if again, err := os.ReadFile(r.BootIDFile); err != nil || string(again) == string(boot) {
		t.Errorf("boot ID %q after %q, %v", again, boot, err)
	}
}

func TestDown_Always_RemovesOwnFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	r := simtest.Root(t, "hgx-h100", nil)
	if err := os.Rename(r.Path, dir); err != nil {
		t.Fatal(err)
	}
	if err := driverroot.Down(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory that up made is left: %v", err)
	}
}

func TestDown_ForeignFiles_KeepsThem(t *testing.T) {
	r := simtest.Root(t, "t4-1", nil)
	for _, p := range []string{"notes.txt", "dev/other"} {
		if err := os.WriteFile(filepath.Join(r.Path, p), []byte("mine"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := driverroot.Down(r.Path); err == nil || !strings.Contains(err.Error(), "left") {
		t.Errorf("got %v, want an error about the remaining files", err)
	}
	if diff := cmp.Diff([]string{"d--------- .", "d--------- dev", "---------- dev/other", "---------- notes.txt"}, tree(t, r.Path)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	if err := driverroot.Down(r.Path); !errors.Is(err, engine.ErrNoMachine) {
		t.Errorf("a second down: %v", err)
	}
}

func TestDown_ManifestLeavesRoot_ReturnsError(t *testing.T) {
	r := simtest.Root(t, "t4-1", nil)
	victim := filepath.Join(filepath.Dir(r.Path), "victim")
	if err := os.WriteFile(victim, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.Path, engine.Dir, "manifest"), []byte("../victim\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := driverroot.Down(r.Path); err == nil {
		t.Error("accepted")
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
}

func TestUp_Refused_LeavesNothing(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	taken := simtest.Root(t, "t4-1", nil)
	lib := filepath.Join(taken.Path, driverroot.LibDir, "libnvidia-ml.so.1")
	smi := filepath.Join(taken.Path, driverroot.BinDir, "nvidia-smi")
	tests := map[string]struct {
		dir  string
		o    driverroot.Options
		says string
	}{
		"a directory with things in it": {full, driverroot.Options{Profile: "t4-1", Library: lib, SMI: smi}, "not empty"},
		"a machine's directory":         {taken.Path, driverroot.Options{Profile: "t4-1", Library: lib, SMI: smi}, "already holds"},
		"an unknown profile":            {"", driverroot.Options{Profile: "h9000", Library: lib, SMI: smi}, "choose one of"},
		"more GPUs than slots":          {"", driverroot.Options{Profile: "t4-1", GPUs: 2, Library: lib, SMI: smi}, "1 slots"},
		"no library":                    {"", driverroot.Options{Profile: "t4-1", Library: "/nowhere", SMI: smi}, "go build -buildmode=c-shared"},
		"no nvidia-smi":                 {"", driverroot.Options{Profile: "t4-1", Library: lib, SMI: "/nowhere"}, "CGO_ENABLED=0 go build"},
		"a library that is none":        {"", driverroot.Options{Profile: "t4-1", Library: smi, SMI: smi}, "SONAME"},
		"an unknown symbol":             {"", driverroot.Options{Profile: "t4-1", Library: lib, SMI: smi, Without: []string{"nvmlNo"}}, "nvmlNo"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := tt.dir
			if dir == "" {
				dir = filepath.Join(t.TempDir(), "root")
			}
			var before []string
			if tt.dir != "" {
				before = tree(t, dir)
			}
			_, err := driverroot.Up(dir, tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error that says %q", err, tt.says)
			}
			if tt.dir != "" {
				if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
					t.Errorf("changed:\n%s", diff)
				}
			} else if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s was left", dir)
			}
		})
	}
}

func TestPlan_Repeated_IsEqual(t *testing.T) {
	for _, name := range profiles.Names() {
		s, err := simtest.Machine(t, name).State()
		if err != nil {
			t.Fatal(err)
		}
		a, err := driverroot.Plan(s)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := driverroot.Plan(s)
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s: two plans of one state differ:\n%s", name, diff)
		}
	}
}

func TestPlaceholder_Library_IsELFSharedObject(t *testing.T) {
	r := simtest.Root(t, "t4-1", nil)
	lib64 := filepath.Join(r.Path, driverroot.LibDir)
	// ldconfig reads each file as the loader does and links its SONAME to it.
	for _, soname := range []string{"libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"} {
		if err := os.Remove(filepath.Join(lib64, soname)); err != nil {
			t.Fatal(err)
		}
	}
	cache := filepath.Join(t.TempDir(), "cache")
	out, err := exec.Command("/sbin/ldconfig", "-f", "/dev/null", "-C", cache, "-v", lib64).CombinedOutput()
	if err != nil {
		t.Fatalf("ldconfig: %v\n%s", err, out)
	}
	has(t, lib64, "L--------- libcuda.so.1 -> libcuda.so.580.126.09", "L--------- libnvidia-nvvm.so.4 -> libnvidia-nvvm.so.580.126.09",
		"L--------- libnvidia-ptxjitcompiler.so.1 -> libnvidia-ptxjitcompiler.so.580.126.09")
}

// TestLoad_BareMachine_HasNodesAndModule boots a driver without nvidia-persistenced, and runs nvidia-modprobe.
func TestLoad_BareMachine_HasNodesAndModule(t *testing.T) {
	r := simtest.Root(t, "hgx-h100", func(o *driverroot.Options) { o.Bare = true })
	complete := func() bool {
		nodes, err := filepath.Glob(filepath.Join(r.Path, "dev/nvidia*"))
		if err != nil {
			t.Fatal(err)
		}
		devices, err := os.ReadFile(filepath.Join(r.ProcRoot, "devices"))
		if err != nil {
			t.Fatal(err)
		}
		if uvm := strings.Contains(string(devices), "nvidia-uvm"); uvm != (len(nodes) > 0) {
			t.Errorf("nvidia_uvm: %t, nodes: %v", uvm, nodes)
		}
		return len(nodes) > 0
	}
	for range 2 {
		if complete() {
			t.Error("it has nodes after its boot")
		}
		if out, err := exec.Command(filepath.Join(r.Path, driverroot.BinDir, driverroot.ModprobeProgram), "-u", "-c0").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if !complete() {
			t.Error("nvidia-modprobe made no nodes")
		}
		simtest.Change(t, r, (*engine.State).Reboot)
	}
}

// TestReplace_OtherBoard_KeepsDirectoriesThatContainersMount compares the machine with a new one of the same board.
func TestReplace_OtherBoard_KeepsDirectoriesThatContainersMount(t *testing.T) {
	r := simtest.Root(t, "hgx-h100", nil)
	simtest.Change(t, r, func(s *engine.State) { s.Remove(&s.GPUs[3]) })
	smi := filepath.Join(r.Path, driverroot.BinDir, "nvidia-smi")
	next := driverroot.Options{Profile: "l40s-4", GPUs: 2, Seed: "n", Origin: "mine", Library: copyOf(t, r.Library), SMI: copyOf(t, smi)}
	inode := func(p string) uint64 {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(r.Path, p), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	mounted := []string{".", "dev", "proc", "sys", engine.Dir}
	var before, after []uint64
	for _, p := range mounted {
		before = append(before, inode(p))
	}
	replaced, err := driverroot.Replace(r.Path, next)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range mounted {
		after = append(after, inode(p))
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the directories %v are others:\n%s", mounted, diff)
	}
	fresh, err := driverroot.Up(filepath.Join(t.TempDir(), "fresh"), next)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tree(t, fresh.Path), tree(t, r.Path)); diff != "" {
		t.Errorf("(-new machine +replaced)\n%s", diff)
	}
	if s, err := replaced.State(); err != nil || s.Origin != "mine" || len(s.OnBus()) != 2 {
		t.Errorf("the state is %+v, %v", s, err)
	}
	if err := driverroot.Down(r.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := driverroot.Replace(r.Path, next); !errors.Is(err, engine.ErrNoMachine) {
		t.Errorf("in an empty directory: %v", err)
	}
	if _, err := os.Lstat(r.Path); err == nil && len(tree(t, r.Path)) > 1 {
		t.Errorf("left: %v", tree(t, r.Path))
	}
}

func TestRefresh_OtherLibrary_KeepsMachine(t *testing.T) {
	r := simtest.Root(t, "t4-1", nil)
	smi := filepath.Join(r.Path, driverroot.BinDir, "nvidia-smi")
	next := driverroot.Options{Library: copyOf(t, r.Library), SMI: filepath.Join(t.TempDir(), "smi")}
	if err := os.WriteFile(next.SMI, []byte("newer"), 0o755); err != nil {
		t.Fatal(err)
	}
	simtest.Change(t, r, func(s *engine.State) { s.GPUs[0].Lost = true })
	before := tree(t, r.Path)
	if err := r.Refresh(next); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(smi); err != nil || string(got) != "newer" {
		t.Errorf("nvidia-smi is %d bytes, %v", len(got), err)
	}
	if diff := cmp.Diff(before, tree(t, r.Path)); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
	if s, err := r.State(); err != nil || !s.GPUs[0].Lost {
		t.Errorf("the GPU is not lost any more: %v", err)
	}
}

// copyOf copies a file of a machine that the test removes.
func copyOf(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), filepath.Base(file))
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}
