// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package driverroot reads from a driver's files what a container needs to use a GPU: device nodes, libraries, hooks.
//
// It asks nvidia-container-toolkit's nvcdi, of which it is the only importer, and the kernel's files under /proc. NVML
// is not asked, so that preparing a claim holds no /dev/nvidiactl open.
//
// Traps. The plugin sees the driver under other paths than the container runtime does; edits hold the runtime's. nvcdi
// only warns where a file is missing, and would give a container that sees no GPU: what must be there is checked here.
// Answers are kept for as long as the files they came from look the same, so an upgraded driver is noticed at once.
package driverroot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"
)

// What keeps a GPU from being handed out for now. Each may clear without a restart.
var (
	ErrDriverNotLoaded = errors.New("the NVIDIA kernel driver is not loaded")
	ErrNoGPU           = errors.New("the NVIDIA kernel driver has no such GPU")
	// ErrIncomplete says that the driver root lacks a file that a container needs.
	ErrIncomplete = errors.New("the NVIDIA driver root is incomplete")
)

type Options struct {
	// DriverRoot is where this process sees the driver's user space, HostDriverRoot where the container runtime does.
	// Defaults: / and DriverRoot.
	DriverRoot, HostDriverRoot string
	// DevRoot is the directory that holds /dev, as this process and as the runtime see it. Defaults: the driver roots.
	DevRoot, HostDevRoot string
	ProcRoot             string
	// HookPath is the host path of nvidia-cdi-hook.
	HookPath string
}

// Root is a driver root. Its methods may be called at once.
type Root struct {
	o Options

	mu      sync.Mutex
	entries map[string]entry // by PCI address, and "" for the common edits
}

// Device identifies a GPU, or a MIG partition of one.
type Device struct {
	Name       string
	PCIAddress string
	// UUID is the GPU's, also of a partition.
	UUID string
	// Minor is used where the kernel does not tell the GPU's minor number.
	Minor int
	// Partition is nil for a whole GPU.
	Partition *Partition
	// Switches adds the node's NVSwitches, which a group of GPUs needs.
	Switches bool
}

// Partition identifies a MIG partition of a GPU. Its UUID is empty until the partition exists.
type Partition struct {
	UUID                         string
	GPUInstance, ComputeInstance int
}

// entry holds edits and the stamps of the files that they were read from.
type entry struct {
	key   string
	edits specs.ContainerEdits
}

// New makes a Root. The driver need not be there yet.
func New(o Options) *Root {
	o.DriverRoot = cmp.Or(o.DriverRoot, "/")
	o.HostDriverRoot = cmp.Or(o.HostDriverRoot, o.DriverRoot)
	o.DevRoot = cmp.Or(o.DevRoot, o.DriverRoot)
	o.HostDevRoot = cmp.Or(o.HostDevRoot, o.HostDriverRoot)
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	return &Root{o: o, entries: map[string]entry{}}
}

// Common is what every container with a GPU gets: control nodes, libraries, binaries, hooks. The slices are the
// caller's, what they point to is shared and must not be changed.
func (r *Root) Common(ctx context.Context) (specs.ContainerEdits, error) {
	version, err := r.driverVersion()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	return r.cached(ctx, "", version+r.commonStamp(), func() (specs.ContainerEdits, error) { return r.readCommon(version) })
}

// GPU is what a container gets for one device: a whole GPU, or a partition of one, which is never kept, for instance IDs
// are used again. The kernel is asked for the minor number: the one in device may be an earlier boot's. Sharing is as
// with Common.
func (r *Root) GPU(ctx context.Context, device Device) (specs.ContainerEdits, error) {
	version, err := r.driverVersion()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if device.Minor, err = r.minor(device); err != nil {
		return specs.ContainerEdits{}, err
	}
	key := fmt.Sprint(version, " ", device.UUID, " ", r.gpuStamp(device))
	edits, err := r.cached(ctx, device.PCIAddress, key, func() (specs.ContainerEdits, error) { return r.readGPU(version, device) })
	if err == nil && device.Partition != nil {
		err = r.addPartition(&edits, device)
	}
	if err == nil && device.Switches {
		err = r.addSwitches(&edits)
	}
	return edits, err
}

// cached returns the edits of a name as last read, or reads them where the key has changed. The slices are the caller's.
func (r *Root) cached(ctx context.Context, name, key string, read func() (specs.ContainerEdits, error)) (specs.ContainerEdits, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.entries[name]
	if !ok || e.key != key {
		if err := ctx.Err(); err != nil {
			return specs.ContainerEdits{}, err
		}
		edits, err := read()
		if err != nil {
			delete(r.entries, name)
			return specs.ContainerEdits{}, err
		}
		e = entry{key: key, edits: edits}
		r.entries[name] = e
	}
	edits := e.edits
	edits.Env, edits.AdditionalGIDs = slices.Clone(edits.Env), slices.Clone(edits.AdditionalGIDs)
	edits.DeviceNodes, edits.Hooks, edits.Mounts = slices.Clone(edits.DeviceNodes), slices.Clone(edits.Hooks), slices.Clone(edits.Mounts)
	return edits, nil
}

// directories are those of the driver root that nvcdi searches. Installing or removing a driver changes one of them.
var directories = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current",
	"usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	"usr/bin", "usr/local/bin", "bin", "lib/firmware/nvidia", "usr/lib/firmware/nvidia", "etc/ld.so.cache",
	"etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/share/glvnd/egl_vendor.d",
	"run/nvidia-persistenced", "var/run/nvidia-persistenced", "run/nvidia-fabricmanager", "var/run/nvidia-fabricmanager",
	"tmp/nvidia-mps",
}

// controlNodes are the device nodes that belong to no GPU. A container cannot use CUDA without the needed ones.
var controlNodes = []struct {
	path   string
	needed bool
	remedy string
}{
	{"/dev/nvidiactl", true, "nvidia-modprobe -c 0"},
	{"/dev/nvidia-uvm", true, "modprobe nvidia-uvm && nvidia-modprobe -u -c 0"},
	{"/dev/nvidia-uvm-tools", false, ""},
	{"/dev/nvidia-modeset", false, ""},
}

// commonStamp changes when the files change that Common is read from.
func (r *Root) commonStamp() string {
	var b strings.Builder
	for _, dir := range directories {
		stamp(&b, filepath.Join(r.o.DriverRoot, dir))
	}
	for _, n := range controlNodes {
		nodeStamp(&b, filepath.Join(r.o.DevRoot, n.path))
	}
	return b.String()
}

// gpuStamp changes when the nodes change that a GPU's edits are read from.
func (r *Root) gpuStamp(device Device) string {
	var b strings.Builder
	nodeStamp(&b, filepath.Join(r.o.DevRoot, node(device)))
	stamp(&b, filepath.Join(r.o.DevRoot, "dev/dri"))
	stamp(&b, filepath.Join("/sys/bus/pci/devices", device.PCIAddress, "drm"))
	return b.String()
}

func node(device Device) string { return fmt.Sprintf("/dev/nvidia%d", device.Minor) }

// stamp tells a file or directory from what it was before. Absence is a stamp too.
func stamp(b *strings.Builder, path string) {
	var s unix.Stat_t
	if unix.Stat(path, &s) != nil {
		b.WriteString(" -")
		return
	}
	fmt.Fprintf(b, " %d:%d:%d", s.Ino, s.Mtim.Sec, s.Mtim.Nsec)
}

// nodeStamp tells a device node by what a container is told of it.
func nodeStamp(b *strings.Builder, path string) {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil {
		b.WriteString(" -")
		return
	}
	fmt.Fprintf(b, " %o:%d:%d:%d", s.Mode, s.Rdev, s.Uid, s.Gid)
}
