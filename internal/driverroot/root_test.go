// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"
)

func common(t *testing.T, r *Root) specs.ContainerEdits {
	t.Helper()
	edits, err := r.Common(context.Background())
	if err != nil {
		t.Fatalf("Common: %v", err)
	}
	return edits
}

func gpuEdits(t *testing.T, r *Root) specs.ContainerEdits {
	t.Helper()
	edits, err := r.GPU(context.Background(), device)
	if err != nil {
		t.Fatalf("GPU: %v", err)
	}
	return edits
}

func nodes(e specs.ContainerEdits) []specs.DeviceNode {
	var out []specs.DeviceNode
	for _, n := range e.DeviceNodes {
		c := *n
		c.FileMode, c.GID = nil, nil
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b specs.DeviceNode) int { return strings.Compare(a.Path, b.Path) })
	return out
}

func TestGPU_DeviceNodes_AreDescribedInFull(t *testing.T) {
	_, o := newEnv(t)
	r := New(o)
	host := "/run/nvidia/driver"
	node := func(path string, major, minor int64) specs.DeviceNode {
		return specs.DeviceNode{Path: path, HostPath: host + path, Type: "c", Major: major, Minor: minor, Permissions: "rw"}
	}
	if diff := cmp.Diff([]specs.DeviceNode{
		node("/dev/nvidia-uvm", 510, 0), node("/dev/nvidia-uvm-tools", 510, 1), node("/dev/nvidiactl", 195, 255),
	}, nodes(common(t, r))); diff != "" {
		t.Errorf("common nodes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]specs.DeviceNode{node("/dev/nvidia1", 195, 1)}, nodes(gpuEdits(t, r))); diff != "" {
		t.Errorf("GPU nodes (-want +got):\n%s", diff)
	}
}

func TestCommon_OtherHostRoot_ReturnsHostPaths(t *testing.T) {
	_, o := newEnv(t)
	r := New(o)
	for _, e := range []specs.ContainerEdits{common(t, r), gpuEdits(t, r)} {
		for _, m := range e.Mounts {
			if want := "/run/nvidia/driver" + m.ContainerPath; m.HostPath != want {
				t.Errorf("mount of %s comes from %s, want %s", m.ContainerPath, m.HostPath, want)
			}
		}
		for _, h := range e.Hooks {
			if h.Path != o.HookPath {
				t.Errorf("hook %v runs %s, want %s", h.Args, h.Path, o.HookPath)
			}
		}
		if text, _ := json.Marshal(e); strings.Contains(string(text), o.DriverRoot) {
			t.Errorf("edits name a path that only this process knows, %s: %s", o.DriverRoot, text)
		}
	}
	if e := common(t, r); !slices.Contains(e.Env, "NVIDIA_VISIBLE_DEVICES=void") {
		t.Errorf("env %v: a legacy runtime hook would inject GPUs a second time", e.Env)
	}
}

func TestCommon_HookBelowDriverRoot_KeepsHookPath(t *testing.T) {
	_, o := newEnv(t)
	o.HookPath = o.DriverRoot + "-hooks/nvidia-cdi-hook" // shares a prefix with the driver root, but is outside of it
	for _, h := range common(t, New(o)).Hooks {
		if h.Path != o.HookPath {
			t.Errorf("hook %v runs %s, want %s", h.Args, h.Path, o.HookPath)
		}
	}
}

func TestGPU_OtherDevRoot_ReturnsItsNodes(t *testing.T) {
	dir, o := newEnv(t)
	o.DevRoot, o.HostDevRoot = filepath.Join(dir, "other"), "/"
	if err := os.MkdirAll(o.DevRoot, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "root/dev"), filepath.Join(o.DevRoot, "dev")); err != nil {
		t.Fatal(err)
	}
	want := []specs.DeviceNode{{Path: "/dev/nvidia1", Type: "c", Major: 195, Minor: 1, Permissions: "rw"}}
	if diff := cmp.Diff(want, nodes(gpuEdits(t, New(o)))); diff != "" {
		t.Errorf("GPU nodes (-want +got):\n%s", diff)
	}
}

func TestCommon_LinkedDriverRoot_FollowsLink(t *testing.T) {
	dir, o := newEnv(t)
	want := common(t, New(o))
	o.DriverRoot = filepath.Join(dir, "link")
	if err := os.Symlink("root", o.DriverRoot); err != nil {
		t.Fatal(err)
	}
	o.DevRoot = filepath.Join(dir, "root")
	if diff := cmp.Diff(want, common(t, New(o))); diff != "" {
		t.Errorf("a link to the driver root changes the edits (-want +got):\n%s", diff)
	}
}

func TestRoot_FileMissing_NamesIt(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  error
		says  string
	}{
		"driver not loaded": {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "proc/driver")) },
			ErrDriverNotLoaded, "modprobe nvidia"},
		"version file unreadable as such": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "proc/driver/nvidia/version"), "?") },
			ErrIncomplete, "names no version"},
		"GPU off the bus": {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "proc/driver/nvidia/gpus/0000:1b:00.0")) },
			ErrNoGPU, "0000:1b:00.0"},
		"no UVM module": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "proc/devices"), "195 nvidia\n") },
			ErrIncomplete, "modprobe nvidia-uvm"},
		"no number of GPUs": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "proc/devices"), "510 nvidia-uvm\n") },
			ErrIncomplete, "no line for nvidia"},
		"no device numbers": {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "proc/devices")) },
			os.ErrNotExist, "device numbers"},
		"no libraries": {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "root/usr/lib64")) },
			ErrIncomplete, version},
		"libraries of another version": {func(t *testing.T, dir string) {
			install(t, dir, "570.1.2")
			write(t, filepath.Join(dir, "proc/driver/nvidia/version"), "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+version+"  Tue\n")
		}, ErrIncomplete, version},
		"no driver root": {func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "root")) }, ErrIncomplete, "root"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, o := newEnv(t)
			r := New(o)
			// Filled caches must not hide a removed file.
			common(t, r)
			gpuEdits(t, r)
			tc.spoil(t, dir)
			_, errCommon := r.Common(context.Background())
			_, errGPU := r.GPU(context.Background(), device)
			err := errors.Join(errCommon, errGPU)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("errors %v, want %v with %q", err, tc.want, tc.says)
			}
		})
	}
}

func TestCommon_DriverUpgraded_ReadsAgain(t *testing.T) {
	dir, o := newEnv(t)
	r := New(o)
	common(t, r)
	install(t, dir, "590.10.01")
	if e := common(t, r); !slices.ContainsFunc(e.Mounts, named("libcuda.so.590.10.01")) || slices.ContainsFunc(e.Mounts, named("libcuda.so."+version)) {
		t.Errorf("mounts after the upgrade: %v", e.Mounts)
	}
}

func TestGPU_MinorChanged_UsesKernels(t *testing.T) {
	dir, o := newEnv(t)
	r := New(o)
	gpuEdits(t, r)
	write(t, filepath.Join(dir, "proc/driver/nvidia/gpus/0000:1b:00.0/information"), "Device Minor: \t 0\n")
	if got := nodes(gpuEdits(t, r)); len(got) != 1 || got[0].Path != "/dev/nvidia0" {
		t.Errorf("nodes %+v, want /dev/nvidia0: the minor in the plan is of an earlier boot", got)
	}
}

func TestGPU_ModeOfNodeChanged_ReadsAgain(t *testing.T) {
	dir, o := newEnv(t)
	r := New(o)
	gpuEdits(t, r)
	if err := os.Chmod(filepath.Join(dir, "root/dev/nvidia1"), 0o660); err != nil {
		t.Fatal(err)
	}
	if mode := gpuEdits(t, r).DeviceNodes[0].FileMode; mode == nil || mode.Perm() != 0o660 {
		t.Errorf("mode %v, want the mode that it has now", mode)
	}
}

func TestCommon_CallerAppends_CacheUnchanged(t *testing.T) {
	_, o := newEnv(t)
	r := New(o)
	want, _ := json.Marshal(gpuEdits(t, r))
	e := gpuEdits(t, r)
	e.DeviceNodes[0] = &specs.DeviceNode{Path: "/dev/other"}
	e.Env = append(e.Env, "A=B")
	if got, _ := json.Marshal(gpuEdits(t, r)); string(got) != string(want) {
		t.Errorf("a caller's change reached the cache: %s", got)
	}
}

func TestRoot_ConcurrentCallers_GetSameEdits(t *testing.T) {
	_, o := newEnv(t)
	r := New(o)
	want := gpuEdits(t, New(o))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				if _, err := r.Common(context.Background()); err != nil {
					t.Errorf("Common: %v", err)
				}
				if got, err := r.GPU(context.Background(), device); err != nil || !cmp.Equal(want, got) {
					t.Errorf("GPU = %+v, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestRoot_ContextEnded_ReadsNothing(t *testing.T) {
	_, o := newEnv(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := New(o).GPU(ctx, device); !errors.Is(err, context.Canceled) {
		t.Errorf("GPU: %v, want context.Canceled", err)
	}
}

func TestParseVersion_KernelModules_ReturnsVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n":                            "535.54.03",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build  (dvs@U)\nGCC version: gcc 12.2.0": "580.126.09",
		"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  565.57  Release\n":                                          "565.57",
	} {
		if got, err := parseVersion("version", []byte(text)); got != want || err != nil {
			t.Errorf("parseVersion(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
}

func FuzzKernelFiles(f *testing.F) {
	for _, s := range []string{"NVRM version: Kernel Module 1.2 ", "Device Minor: 0\n", "Device Minor: 99999999999999999999\n", "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, ok := parseMinor(minorForm, data); ok && n < 0 {
			t.Errorf("minor %d", n)
		}
		if v, err := parseVersion("version", data); err == nil && strings.Trim(v, "0123456789.") != "" {
			t.Errorf("version %q", v)
		}
	})
}

func BenchmarkCached(b *testing.B) {
	_, o := newEnv(b)
	r := New(o)
	for b.Loop() {
		if _, err := r.Common(context.Background()); err != nil {
			b.Fatal(err)
		}
		if _, err := r.GPU(context.Background(), device); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUncached(b *testing.B) {
	_, o := newEnv(b)
	for b.Loop() {
		r := New(o)
		if _, err := r.Common(context.Background()); err != nil {
			b.Fatal(err)
		}
		if _, err := r.GPU(context.Background(), device); err != nil {
			b.Fatal(err)
		}
	}
}

// TestRoot_ProgramsAndLibrariesAlone_NodesAreTheHosts has a driver root like /home/kubernetes/bin/nvidia of GKE.
func TestRoot_ProgramsAndLibrariesAlone_NodesAreTheHosts(t *testing.T) {
	dir, o := newEnv(t)
	o.DriverRoot, o.HostDriverRoot = filepath.Join(dir, "root/usr"), "/home/kubernetes/bin/nvidia"
	r := New(o)
	edits := common(t, r)
	for _, want := range []string{"/bin/nvidia-smi", "/lib64/libcuda.so." + version} {
		i := slices.IndexFunc(edits.Mounts, func(m *specs.Mount) bool { return m.ContainerPath == want })
		if i < 0 || edits.Mounts[i].HostPath != "/home/kubernetes/bin/nvidia"+want {
			t.Errorf("no mount of %s from the driver root", want)
		}
	}
	for _, n := range slices.Concat(nodes(edits), nodes(gpuEdits(t, r))) {
		if n.HostPath != "" || n.Major == 0 {
			t.Errorf("%s is of %q on the host, with the number %d:%d", n.Path, n.HostPath, n.Major, n.Minor)
		}
	}
}

// TestCommon_ProgramsAreLinks_ContainerFindsThem has a driver below /usr/local/nvidia, with links to its files.
func TestCommon_ProgramsAreLinks_ContainerFindsThem(t *testing.T) {
	dir, o := newEnv(t)
	const behind = "/usr/local/nvidia/bin"
	for _, name := range []string{"nvidia-smi", "nvidia-cuda-mps-control"} {
		link := filepath.Join(dir, "root/usr/bin", name)
		remove(t, link)
		write(t, filepath.Join(dir, "root", behind, name), "")
		if err := errors.Join(os.Chmod(filepath.Join(dir, "root", behind, name), 0o755), os.Symlink(filepath.Join(behind, name), link)); err != nil {
			t.Fatal(err)
		}
	}
	lib := filepath.Join(dir, "root/usr/lib64")
	if err := os.Rename(lib, filepath.Join(dir, "root/usr/local/nvidia/lib64")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(lib, 0o755), os.Symlink("/usr/local/nvidia/lib64/libcuda.so."+version, lib+"/libcuda.so."+version)); err != nil {
		t.Fatal(err)
	}
	edits := common(t, New(o))
	if i := slices.IndexFunc(edits.Mounts, named("libcuda.so."+version)); edits.Mounts[i].HostPath != "/run/nvidia/driver/usr/local/nvidia/lib64/libcuda.so."+version {
		t.Errorf("%+v", edits.Mounts[i])
	}
	for _, name := range []string{"nvidia-smi", "nvidia-cuda-mps-control"} {
		i := slices.IndexFunc(edits.Mounts, named(name))
		if i < 0 || edits.Mounts[i].ContainerPath != "/usr/bin/"+name || edits.Mounts[i].HostPath != "/run/nvidia/driver"+behind+"/"+name {
			t.Errorf("%s: mount %d of %d: %+v", name, i, len(edits.Mounts), edits.Mounts)
		}
	}
}

// TestCommon_NodesLDConfig_IsNamed looks at the root directory of the node's first process.
func TestCommon_NodesLDConfig_IsNamed(t *testing.T) {
	for _, at := range append(LDConfigs, "") {
		dir, o := newEnv(t)
		if at != "" {
			write(t, filepath.Join(dir, "proc/1/root", at), "")
		}
		var args []string
		for _, h := range common(t, New(o)).Hooks {
			if slices.Contains(h.Args, "update-ldcache") {
				args = h.Args
			}
		}
		if i := slices.Index(args, "--ldconfig-path"); at == "" && i >= 0 || at != "" && (i < 0 || args[i+1] != at) {
			t.Errorf("%q: %v", at, args)
		}
		if err := New(o).CheckLDConfig(); err != nil {
			t.Errorf("%q: %v", at, err)
		}
		if at == "" {
			write(t, filepath.Join(dir, "proc/1/root/etc/passwd"), "")
			if err := New(o).CheckLDConfig(); !errors.Is(err, ErrNoLDConfig) {
				t.Error(err)
			}
		}
	}
}
