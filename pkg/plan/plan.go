// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan turns an allocated claim into what must be done for it on this node: a plain value, the same for the
// same claim and hardware, with a stable JSON form that records keep.
//
// A plan holds identities (PCI address, UUID), from which every effect can be found again, and the few facts that
// belong to one boot (the minor number), which a plan made after a reboot replaces.
package plan

import (
	"encoding/json"
	"errors"
	"slices"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
)

const (
	// MIGExecutor makes partitions.
	MIGExecutor = "mig"
	// MPSExecutor has an MPS daemon serve a device.
	MPSExecutor = "mps"
	// TimeSliceExecutor sets a GPU's time slice.
	TimeSliceExecutor = "time-slice"
)

// What an executor's errors can be marked as.
var (
	// ErrUnchanged changed nothing, so that there is nothing to revert.
	ErrUnchanged = errors.New("nothing was changed")
	// ErrDestroyed changed nothing either: what was made for the device is gone, and can be made again once the claim's
	// record says that it may be.
	ErrDestroyed = errors.New("somebody destroyed it outside of this driver")
)

// Plan is what one claim needs on this node.
type Plan struct {
	Claim Claim `json:"claim"`
	// Allocation identifies what the scheduler gave the claim: two plans of a claim UID with different allocations
	// are different plans, never "already prepared".
	Allocation string   `json:"allocation"`
	Devices    []Device `json:"devices"`
	// Refused says why the node's settings keep the claim from being prepared. One that is prepared already stands, whatever
	// they say today.
	Refused error `json:"-"`
	// Steps are the effects beyond the CDI spec that a crash could strand, in the order of execution.
	Steps []Step `json:"steps,omitempty"`
}

// Claim identifies a ResourceClaim. Only the UID is an identity: a name can be used again.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

func (c Claim) String() string {
	if c.Name == "" {
		return "UID " + c.UID // Its record was unreadable, and nothing else says more.
	}
	return c.Namespace + "/" + c.Name
}

// Refuse explains why the claim cannot be prepared. The device is empty where it concerns none.
func (c Claim) Refuse(device string, reason claimerror.Reason, cause error, remedy string) error {
	return &claimerror.Error{
		Reason: reason, Attempt: "prepare", Claim: c.String(), Device: device, Cause: cause, Remedy: remedy,
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
	// Admin says that the claim only watches: it neither blocks others nor is blocked by them.
	Admin      bool   `json:"admin,omitempty"`
	PCIAddress string `json:"pciAddress"`
	// UUID is the GPU's, of a MIG device its parent's.
	UUID string `json:"uuid"`
	// Minor is the number in /dev/nvidia<minor>, of the boot that the plan was made in.
	Minor int `json:"minor"`
	// Partition is a MIG device's, zero of any other.
	Partition Partition `json:"partition,omitzero"`
	// Share is the part of the device that the claim has, zero where it has all of it.
	Share Share `json:"share,omitzero"`
	// Sharing is how the processes on it get along.
	Sharing Sharing `json:"sharing,omitzero"`
	// TopologyEnv is what containers are told of the GPUs of the request, on the request's first device only.
	TopologyEnv TopologyEnv `json:"told,omitzero"`
}

// TopologyEnv is how GPUs are wired, for programs.
type TopologyEnv struct {
	// VisibleDevices is the value of CUDA_VISIBLE_DEVICES, empty where it is left alone.
	VisibleDevices string `json:"visibleDevices,omitempty"`
	// NCCLTopology is the content of the file for NCCL, empty where there is none.
	NCCLTopology string `json:"ncclTopology,omitempty"`
}

// Continues says that the device is one more GPU of the group that the device before it is of: a group is as many devices
// of its name, in link order, so that whatever concerns a GPU finds each.
func (p Plan) Continues(i int) bool {
	return i > 0 && p.Devices[i].Kind == gpu.KindGroup && p.Devices[i-1].Kind == gpu.KindGroup &&
		p.Devices[i].Name == p.Devices[i-1].Name && p.Devices[i].Request == p.Devices[i-1].Request
}

// WholeGPU says that the device is all of a GPU, by itself or in a group.
func (d Device) WholeGPU() bool { return d.Kind == gpu.KindGPU || d.Kind == gpu.KindGroup }

// Partition is a part of a GPU: what identifies it, and what the executor found or made of it in this boot.
type Partition struct {
	Profile     string `json:"profile"`
	Start       int    `json:"start"`
	Size        int    `json:"size"`
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	// Foreign says that an administrator made it: it is used as it is, and never destroyed.
	Foreign bool `json:"foreign,omitempty"`
	// Lost says that it vanished under its claim and is being made again: what is of its profile in its place is it.
	Lost bool `json:"lost,omitempty"`
	// UUID is "MIG-…", empty until the partition exists; the instance IDs mean nothing without it.
	UUID            string `json:"uuid,omitempty"`
	GPUInstance     int    `json:"gpuInstance,omitempty"`
	ComputeInstance int    `json:"computeInstance,omitempty"`
}

func (p Partition) Placement() gpu.Placement { return gpu.Placement{Start: p.Start, Size: p.Size} }

// Overlaps says whether two devices cannot be had at once by two claims: the whole of a GPU overlaps everything on it,
// partitions do where they share a memory slice, shares of one device do not by themselves (Use counts them), and
// watching overlaps nothing.
func (d Device) Overlaps(o Device) bool {
	if d.PCIAddress != o.PCIAddress || d.Admin || o.Admin || d.Shares(o) {
		return false
	}
	return d.Kind != gpu.KindMIG || o.Kind != gpu.KindMIG || d.Partition.Placement().Overlaps(o.Partition.Placement())
}

// Step is one effect of an executor.
type Step struct {
	// Executor names who carries it out and takes it back.
	Executor string `json:"executor"`
	// PCIAddress is the GPU it changes.
	PCIAddress string `json:"pciAddress"`
	// Device is the position in the plan's Devices of the one that it is for.
	Device int `json:"device,omitempty"`
	// Spec is the executor's own, enough to find the effect again.
	Spec json.RawMessage `json:"spec,omitempty"`
}

// HeldGPUs returns the physical GPUs that the plan has, whole or in part, in locking order, each once. Admin
// access does not count.
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

// Conflict finds a device of p that a plan of another claim makes impossible, on one GPU.
func (p Plan) Conflict(o Plan, address string) (mine Device, found bool) {
	for _, d := range p.Devices {
		if d.PCIAddress == address && slices.ContainsFunc(o.Devices, d.Overlaps) {
			return d, true
		}
	}
	return Device{}, false
}
