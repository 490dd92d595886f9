// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan computes the work for an allocated claim on this node. A Plan is a plain value, equal for the same claim
// and hardware, with a stable JSON form for records.
//
// A plan holds identities (PCI address, UUID), which are enough to find every effect again. It also holds a few values
// of one boot (the minor number), which a new plan after a reboot replaces.
package plan

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/gpu"
)

// MIGExecutor is the name of the executor that creates partitions. The table of package sharing has the others.
const MIGExecutor = "mig"

// Marks of an executor's errors.
var (
	// ErrUnchanged means that nothing changed, so there is nothing to revert.
	ErrUnchanged = errors.New("nothing was changed")
	// ErrKept means that Revert changed nothing, because a claim whose record is unreadable may need the effect.
	ErrKept = errors.New("a claim whose record is unreadable may need it")
	// ErrDestroyed means that nothing changed, but the device's effect is gone. It can be created again after the
	// claim's record allows it.
	ErrDestroyed = errors.New("it was destroyed outside of this driver")
)

// Plan is the work for one claim on this node.
type Plan struct {
	Claim Claim `json:"claim"`
	// Allocation is the scheduler's. Plans of one claim UID with different allocations are different: the second claim
	// is not "already prepared".
	Allocation Allocation `json:"allocated,omitzero"`
	// Digest is of the allocation, for releases that do not know Allocation.
	Digest  string   `json:"allocation"`
	Devices []Device `json:"devices"`
	// Refused is the reason why the node's settings forbid the claim. It does not affect a prepared claim.
	Refused error `json:"-"`
	// Metadata is about the files that describe the claim's devices to its containers.
	Metadata Metadata `json:"metadata,omitzero"`
	// Steps are the effects besides the CDI spec that a crash could strand, in order of execution.
	Steps []Step `json:"steps,omitempty"`
}

// Metadata says whether containers get a file about the devices of each request. A prepared claim keeps it, because a
// container that restarts has the same files.
type Metadata struct {
	Files bool `json:"files,omitempty"`
	// PodClaim is the name of the claim in the pod's spec, for a claim from a template; else empty.
	PodClaim string `json:"podClaim,omitempty"`
}

// DevicePlugins are the device plugins of a node.
type DevicePlugins interface {
	// GPUs returns the extended resource of each GPU that one of them serves, by PCI address; false before that is
	// known.
	GPUs() (map[string]string, bool)
}

// Held lists the claims of a node. *devicestate.Engine implements it.
type Held interface {
	// Held returns the plans of all records. incomplete means that some are unknown.
	Held() (plans []Plan, incomplete bool, err error)
}

// Claim identifies a ResourceClaim. Only the UID is an identity: a name can be used again.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

func (c Claim) String() string {
	if c.Name == "" {
		return "UID " + c.UID // The record was unreadable and no other source has the name.
	}
	return c.Namespace + "/" + c.Name
}

// Refuse returns an error with the reason why the claim cannot be prepared. device may be empty.
func (c Claim) Refuse(device string, reason claimerror.Reason, cause error, remedy string) error {
	return &claimerror.Error{
		Reason: reason, Attempt: "prepare", Claim: c.String(), UID: c.UID, Device: device, Cause: cause, Remedy: remedy,
	}
}

// Device is one allocated device, or a GPU of an allocated group.
type Device struct {
	// Request is the request's name, "request/subrequest" for an alternative of firstAvailable.
	Request string   `json:"request"`
	Pool    string   `json:"pool"`
	Name    string   `json:"name"`
	ShareID string   `json:"shareID,omitempty"`
	Kind    gpu.Kind `json:"kind"`
	// Admin means admin access: the device blocks no other claim and is not blocked by others.
	Admin      bool   `json:"admin,omitempty"`
	PCIAddress string `json:"pciAddress"`
	// UUID is the GPU's; for a MIG device it is the parent's.
	UUID string `json:"uuid"`
	// Minor is the number in /dev/nvidia<minor>, in the boot of the plan.
	Minor int `json:"minor"`
	// ProductName is the GPU's model, if the plan has metadata files.
	ProductName string `json:"productName,omitempty"`
	// Partition is zero for devices other than MIG devices.
	Partition Partition `json:"partition,omitzero"`
	// Share is the claim's part of the device, zero if it has all of it.
	Share Share `json:"share,omitzero"`
	// Sharing configures the processes on the device.
	Sharing Sharing `json:"sharing,omitzero"`
	// TopologyEnv is the environment for the GPUs of the request. Only the request's first device has it.
	TopologyEnv TopologyEnv `json:"topologyEnv,omitzero"`
}

// TopologyEnv describes the connections of GPUs to programs.
type TopologyEnv struct {
	// VisibleDevices is the value of CUDA_VISIBLE_DEVICES, or empty to leave it alone.
	VisibleDevices string `json:"visibleDevices,omitempty"`
	// NCCLTopology is the content of the file for NCCL, or empty for no file.
	NCCLTopology string `json:"ncclTopology,omitempty"`
}

// Continues reports whether the device is a further GPU of the previous device's group. A group has one device with its
// name for each GPU, in link order, so that code for single GPUs also finds these.
func (p Plan) Continues(i int) bool {
	return i > 0 && p.Devices[i].Kind == gpu.KindGroup && p.Devices[i-1].Kind == gpu.KindGroup &&
		p.Devices[i].Name == p.Devices[i-1].Name && p.Devices[i].Request == p.Devices[i-1].Request
}

// RequestName is the name of the device's request, without the name of an alternative.
func (d Device) RequestName() string {
	name, _, _ := strings.Cut(d.Request, "/")
	return name
}

// MetadataFile returns the number of the metadata file with the i-th device. Files are numbered by request, in the
// order of the devices. It is false if the plan has no metadata.
func (p Plan) MetadataFile(i int) (number int, ok bool) {
	if !p.Metadata.Files {
		return 0, false
	}
	var requests []string
	for _, d := range p.Devices[:i] {
		if name := d.RequestName(); !slices.Contains(requests, name) {
			requests = append(requests, name)
		}
	}
	if at := slices.Index(requests, p.Devices[i].RequestName()); at >= 0 {
		return at, true
	}
	return len(requests), true
}

// WholeGPU reports whether the device is all of a GPU, alone or in a group.
func (d Device) WholeGPU() bool { return d.Kind == gpu.KindGPU || d.Kind == gpu.KindGroup }

// Partition identifies a part of a GPU, and holds the executor's IDs of this boot.
type Partition struct {
	Profile     string `json:"profile"`
	Start       int    `json:"start"`
	Size        int    `json:"size"`
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	// External means that the partition is external: the driver uses it unchanged, and never destroys it.
	External bool `json:"external,omitempty"`
	// Lost means that the partition was destroyed and is being created again: one of its profile in its place is it.
	Lost bool `json:"lost,omitempty"`
	// UUID is "MIG-…", or empty before the partition exists. Without it the instance IDs are meaningless.
	UUID            string `json:"uuid,omitempty"`
	GPUInstance     int    `json:"gpuInstance,omitempty"`
	ComputeInstance int    `json:"computeInstance,omitempty"`
}

func (p Partition) Placement() gpu.Placement { return gpu.Placement{Start: p.Start, Size: p.Size} }

// Overlaps reports whether two claims cannot have both devices. A whole GPU overlaps everything on it, and partitions
// overlap if they share a memory slice. Shares of one device do not (Use adds them up), nor does admin access.
func (d Device) Overlaps(o Device) bool {
	if d.PCIAddress != o.PCIAddress || d.Admin || o.Admin || d.Shares(o) {
		return false
	}
	return d.Kind != gpu.KindMIG || o.Kind != gpu.KindMIG || d.Partition.Placement().Overlaps(o.Partition.Placement())
}

// Step is one effect of an executor.
type Step struct {
	// Executor is the name of its executor.
	Executor string `json:"executor"`
	// PCIAddress is the address of the changed GPU.
	PCIAddress string `json:"pciAddress"`
	// Device is its device's index in the plan's Devices.
	Device int `json:"device,omitempty"`
	// Spec is the executor's data, enough to find the effect again.
	Spec json.RawMessage `json:"spec,omitempty"`
}

// Refreshed returns the plan of a prepared claim with the facts of a new plan that may differ. These are the UUID and
// the minor number of the GPU at each address, and /dev/shm of an older driver. All else is kept, because containers
// use it.
func (p Plan) Refreshed(now Plan) Plan {
	p.Devices = slices.Clone(p.Devices)
	for i := range p.Devices {
		d := &p.Devices[i]
		at := slices.IndexFunc(now.Devices, func(n Device) bool { return n.PCIAddress == d.PCIAddress })
		if at >= 0 {
			d.UUID, d.Minor = now.Devices[at].UUID, now.Devices[at].Minor
			d.Sharing.OwnSharedMemory = d.Sharing.OwnSharedMemory && now.Devices[at].Sharing.OwnSharedMemory
		}
	}
	return p
}

// HeldGPUs returns the physical GPUs of the plan's devices, without duplicates, in locking order. It ignores admin
// access.
func (p Plan) HeldGPUs() []string {
	var out []string
	for _, d := range p.Devices {
		if !d.Admin {
			out = append(out, d.PCIAddress)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Conflict finds a device of p that overlaps another claim's plan on one GPU.
func (p Plan) Conflict(o Plan, address string) (mine Device, found bool) {
	for _, d := range p.Devices {
		if d.PCIAddress == address && slices.ContainsFunc(o.Devices, d.Overlaps) {
			return d, true
		}
	}
	return Device{}, false
}

// Gone returns the GPUs of plans that are gone, as lost ones.
func Gone(s gpu.Snapshot, plans []Plan) (out []gpu.Problem) {
	known := map[string]bool{}
	for _, p := range plans {
		for _, d := range p.Devices {
			if !d.Admin && !known[d.PCIAddress] && s.Gone(d.PCIAddress) {
				known[d.PCIAddress] = true
				out = append(out,
					gpu.Problem{PCIAddress: d.PCIAddress, UUID: d.UUID, Lost: true, Message: gpu.GoneText})
			}
		}
	}
	return out
}
