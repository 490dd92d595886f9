// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

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

	"gpu-dra-driver/internal/driverprogram"
	"gpu-dra-driver/internal/host"
)

// Errors that make a GPU unavailable for now. Each can clear without a restart.
var (
	ErrDriverNotLoaded = errors.New("the NVIDIA kernel driver is not loaded")
	ErrNoGPU           = errors.New("the NVIDIA kernel driver has no such GPU")
	// ErrIncomplete says that the driver root lacks a file that a container needs.
	ErrIncomplete = errors.New("the NVIDIA driver root is incomplete")
)

type Options struct {
	// DriverRoot is the driver's user space as this process sees it, HostDriverRoot as the container runtime sees it.
	// Defaults: / and DriverRoot.
	DriverRoot, HostDriverRoot string
	// DevRoot is the parent of /dev, as this process and as the runtime see it. Default: found by driverprogram.DevRoot
	// at each use, because a driver container can start later.
	DevRoot, HostDevRoot string
	ProcRoot             string
	// HookPath is the host path of nvidia-cdi-hook.
	HookPath string
	// Load loads nvidia_uvm before its numbers are read. If false, a node without the module is incomplete.
	Load bool
}

// Root is a driver root. Its methods are safe for concurrent use.
type Root struct {
	o      Options
	loader *Loader
	minors host.Attempts[minorFile] // by PCI address

	mu      sync.Mutex
	entries map[string]entry // by PCI address, and "" for the common edits
}

// Device identifies a GPU, or a MIG partition of one.
type Device struct {
	Name       string
	PCIAddress string
	// UUID is the GPU's UUID, even for a partition.
	UUID string
	// Minor is used if the kernel does not report the GPU's minor number.
	Minor int
	// Partition is nil for a whole GPU.
	Partition *Partition
	// Switches adds the node's NVSwitches, for a group of GPUs.
	Switches bool
}

// Partition identifies a MIG partition of a GPU. Its UUID is empty until the partition exists.
type Partition struct {
	UUID                         string
	GPUInstance, ComputeInstance int
}

// entry holds edits and the stamps of their source files.
type entry struct {
	key   string
	edits specs.ContainerEdits
}

// New makes a Root. The driver may be installed later.
func New(o Options) *Root {
	o.DriverRoot = cmp.Or(o.DriverRoot, "/")
	o.HostDriverRoot = cmp.Or(o.HostDriverRoot, o.DriverRoot)
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	return &Root{o: o, loader: &Loader{Root: o.DriverRoot, ProcRoot: o.ProcRoot}, entries: map[string]entry{}}
}

// dev returns the parent of /dev, as this process and as the runtime see it.
func (r *Root) dev() (here, host string) {
	if r.o.DevRoot != "" {
		return r.o.DevRoot, cmp.Or(r.o.HostDevRoot, r.o.HostDriverRoot)
	}
	if here = driverprogram.DevRoot(r.o.DriverRoot); here == r.o.DriverRoot {
		return here, r.o.HostDriverRoot
	}
	return here, here
}

// Common returns the edits for every container with a GPU: control nodes, libraries, binaries, hooks. The caller owns
// the slices; their elements are shared and must not be changed.
func (r *Root) Common(ctx context.Context) (specs.ContainerEdits, error) {
	version, err := r.driverVersion()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if r.o.Load {
		if err := r.loader.Load(ctx); err != nil {
			return specs.ContainerEdits{}, fmt.Errorf("%w: %w", ErrIncomplete, err)
		}
	}
	return r.cached(ctx, "", version+r.commonStamp(), func() (specs.ContainerEdits, error) {
		return r.readCommon(version)
	})
}

// GPU returns the edits for one device: a whole GPU or a partition. Partitions' edits are not cached, because
// instance IDs are reused. The kernel reports the minor number, because the number in device may be from an earlier
// boot. The elements of the slices are shared, as with Common.
func (r *Root) GPU(ctx context.Context, device Device) (specs.ContainerEdits, error) {
	version, err := r.driverVersion()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if device.Minor, err = r.minor(device); err != nil {
		return specs.ContainerEdits{}, err
	}
	key := fmt.Sprint(version, " ", device.UUID, " ", r.gpuStamp(device))
	edits, err := r.cached(ctx, device.PCIAddress, key, func() (specs.ContainerEdits, error) {
		return r.readGPU(version, device)
	})
	if err == nil && device.Partition != nil {
		err = r.addPartition(&edits, device)
	}
	if err == nil && device.Switches {
		err = r.addSwitches(&edits)
	}
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	return edits, nil
}

// cached returns the cached edits of a name, or reads them if the key has changed. The caller owns the slices.
func (r *Root) cached(
	ctx context.Context, name, key string, read func() (specs.ContainerEdits, error),
) (specs.ContainerEdits, error) {
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
	edits.DeviceNodes, edits.Hooks, edits.Mounts = slices.Clone(edits.DeviceNodes), slices.Clone(edits.Hooks),
		slices.Clone(edits.Mounts)
	return edits, nil
}

// directories lists the directories of the driver root that nvcdi searches. Installing or removing a driver changes
// one of them.
var directories = []string{
	"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu/nvidia/current",
	"usr/lib/aarch64-linux-gnu/nvidia/current", "usr/lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu",
	"usr/bin", "usr/local/bin", "bin", "usr/sbin", "sbin", "lib/firmware/nvidia", "usr/lib/firmware/nvidia",
	"etc/ld.so.cache",
	"etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/share/glvnd/egl_vendor.d",
	"run/nvidia-persistenced", "var/run/nvidia-persistenced", "run/nvidia-fabricmanager",
	"var/run/nvidia-fabricmanager",
	"tmp/nvidia-mps",
}

// commonStamp changes whenever the source files of Common change.
func (r *Root) commonStamp() string {
	var b strings.Builder
	for _, dir := range directories {
		b.WriteString(stamp(filepath.Join(r.o.DriverRoot, dir)))
	}
	dev, _ := r.dev()
	for _, n := range controlNodes {
		b.WriteString(nodeStamp(filepath.Join(dev, n.path)))
	}
	b.WriteString(nodeStamp(filepath.Join(dev, "dev/nvidia-modeset")) + r.numbers() + dev + r.ldconfig())
	return b.String()
}

// gpuStamp changes whenever the device nodes of a GPU change.
func (r *Root) gpuStamp(device Device) string {
	dev, _ := r.dev()
	return r.numbers() + dev + nodeStamp(filepath.Join(dev, node(device))) + stamp(filepath.Join(dev, "dev/dri")) +
		stamp(filepath.Join("/sys/bus/pci/devices", device.PCIAddress, "drm"))
}

func node(device Device) string { return fmt.Sprintf("/dev/nvidia%d", device.Minor) }

// stamp identifies the state of a file or directory. A missing file has a stamp too.
func stamp(path string) string {
	var s unix.Stat_t
	if unix.Stat(path, &s) != nil {
		return " -"
	}
	return fmt.Sprintf(" %d:%d:%d", s.Ino, s.Mtim.Sec, s.Mtim.Nsec)
}

// nodeStamp identifies the state of a device node that containers receive.
func nodeStamp(path string) string {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil {
		return " -"
	}
	return fmt.Sprintf(" %o:%d:%d:%d", s.Mode, s.Rdev, s.Uid, s.Gid)
}
