// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"tags.cncf.io/container-device-interface/specs-go"
)

// What keeps a GPU from being handed out for now. Each may clear without a restart.
var (
	// ErrDriverNotLoaded says that the kernel module is not loaded.
	ErrDriverNotLoaded = errors.New("the NVIDIA kernel driver is not loaded")
	// ErrNoGPU says that the kernel driver does not have the GPU.
	ErrNoGPU = errors.New("the NVIDIA kernel driver has no such GPU")
	// ErrIncomplete says that the driver root lacks a file that a container needs.
	ErrIncomplete = errors.New("the NVIDIA driver root is incomplete")
)

// Options say where the driver is.
type Options struct {
	// DriverRoot is where this process sees the driver's user space, HostDriverRoot where the container runtime does.
	// Defaults: / and DriverRoot.
	DriverRoot, HostDriverRoot string
	// DevRoot is the directory that holds /dev, as this process and as the runtime see it. Defaults: the driver roots.
	DevRoot, HostDevRoot string
	// ProcRoot is the machine's /proc.
	ProcRoot string
	// HookPath is the host path of nvidia-cdi-hook.
	HookPath string
	// LdconfigPath is the ldconfig that refreshes a container's cache; with a leading @ it is the host's. Empty: the
	// hook's default.
	LdconfigPath string
}

// Root is a driver root. Its methods may be called at once.
type Root struct {
	o Options

	mu     sync.Mutex
	common entry
	gpus   map[string]entry // by PCI address
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

// entry is an answer and what the files looked like that it was read from.
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
	return &Root{o: o, gpus: map[string]entry{}}
}

// Common is what every container with a GPU gets: control nodes, libraries, binaries, hooks. The slices are the
// caller's, what they point to is shared and must not be changed.
func (r *Root) Common(ctx context.Context) (specs.ContainerEdits, error) {
	version, err := r.driverVersion()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	key := version + r.commonStamp()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.common.key == key {
		return copied(r.common.edits), nil
	}
	if err := ctx.Err(); err != nil {
		return specs.ContainerEdits{}, err
	}
	edits, err := r.readCommon(version)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	edits.Mounts = slices.DeleteFunc(edits.Mounts, hostsMPS)
	r.common = entry{key: key, edits: edits}
	return copied(edits), nil
}

// hostsMPS says of a mount that it leads to an MPS daemon of the host's, as nvcdi finds one: MPS is for claims that ask for
// it, each with a daemon of its own.
func hostsMPS(m *specs.Mount) bool { return strings.HasSuffix(m.ContainerPath, "/nvidia-mps") }

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
	edits, err := r.gpu(ctx, version, device)
	if err == nil && device.Partition != nil {
		err = r.addPartition(&edits, device, device.Minor)
	}
	if err == nil && device.Switches {
		err = r.addSwitches(&edits)
	}
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	return edits, nil
}

func (r *Root) gpu(ctx context.Context, version string, device Device) (specs.ContainerEdits, error) {
	key := fmt.Sprint(version, " ", device.UUID, " ", r.gpuStamp(device))
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.gpus[device.PCIAddress]; ok && e.key == key {
		return copied(e.edits), nil
	}
	if err := ctx.Err(); err != nil {
		return specs.ContainerEdits{}, err
	}
	edits, err := r.readGPU(version, device)
	if err != nil {
		delete(r.gpus, device.PCIAddress)
		return specs.ContainerEdits{}, err
	}
	r.gpus[device.PCIAddress] = entry{key: key, edits: edits}
	return copied(edits), nil
}

// copied gives a caller slices of its own to append to.
func copied(e specs.ContainerEdits) specs.ContainerEdits {
	e.Env = slices.Clone(e.Env)
	e.DeviceNodes = slices.Clone(e.DeviceNodes)
	e.Hooks = slices.Clone(e.Hooks)
	e.Mounts = slices.Clone(e.Mounts)
	e.AdditionalGIDs = slices.Clone(e.AdditionalGIDs)
	return e
}
