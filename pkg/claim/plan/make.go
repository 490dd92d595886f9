// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/topology"
)

// Node holds the node's part of a plan's input.
type Node struct {
	// Driver is the driver's name; Make ignores results of other drivers.
	Driver string
	// Pool is the name of the node's pool. MonitorPool is the name of the pool of its monitor devices, which were in
	// Pool before.
	Pool, MonitorPool string
	Snapshot          gpu.Snapshot
	// Policy returns the node's setting for a GPU or a MIG profile of it.
	Policy func(g gpu.GPU, profile string) sharing.Policy
	// Standing has the sharing of devices of which other claims have shares, by device name, as far as it differs from
	// the settings. Claims that name no strategy join those shares.
	Standing map[string]Sharing
	// Prepared is the plan of a claim that is prepared already: its groups keep their GPUs, even if links changed, and
	// its shares their strategy.
	Prepared Plan
	// NoMPS is the reason why this node has no MPS; empty if it has.
	NoMPS string
	// Metadata gives containers files about their devices.
	Metadata bool
}

// Make plans an allocated claim. Without results of this driver the plan has no devices. Errors are *claimerror.Error.
func Make(claim *resourceapi.ResourceClaim, node Node) (Plan, error) {
	m := maker{node: node, claim: Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}}
	m.source, m.renew = "the claim", "create the claim anew"
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		m.source, m.renew = "the template", "delete the pod"
	}
	if claim.Status.Allocation == nil {
		return Plan{}, m.claim.Refuse("", claimerror.InvalidAllocation,
			errors.New("the claim is not allocated"), "wait for the scheduler to allocate it")
	}
	devices := claim.Status.Allocation.Devices
	p := Plan{Claim: m.claim, Allocation: allocationOf(devices, node.Driver), Digest: digest(devices, node.Driver)}
	if node.Metadata {
		p.Metadata = Metadata{Files: true, PodClaim: claim.Annotations[resourceapi.PodResourceClaimAnnotation]}
	}
	if !node.Prepared.SameAllocation(p) {
		m.node.Prepared = Plan{}
	}
	for i := range devices.Results {
		result := &devices.Results[i]
		if result.Driver != node.Driver {
			continue
		}
		found, err := m.devices(result)
		if err != nil {
			return Plan{}, err
		}
		for _, device := range found {
			p.Devices = append(p.Devices, device)
			m.results = append(m.results, result)
		}
	}
	if err := m.configure(&p, devices.Config); err != nil {
		return Plan{}, err
	}
	p.steps()
	return p, nil
}

// steps adds the steps that a device needs besides its CDI spec: its partition first, then the sharing.
func (p *Plan) steps() {
	for i, d := range p.Devices {
		step := func(executor string) {
			same := func(s Step) bool { return s.Executor == executor && p.Devices[s.Device].Name == d.Name }
			if !slices.ContainsFunc(p.Steps, same) {
				p.Steps = append(p.Steps, Step{Executor: executor, PCIAddress: d.PCIAddress, Device: i})
			}
		}
		if d.Admin {
			continue
		}
		if d.Kind == gpu.KindMIG {
			step(MIGExecutor)
		}
		if s := sharing.Of(d.Sharing.Strategy); s.Executor != "" && (d.Sharing.Timed || !s.Interval) {
			step(s.Executor)
		}
	}
}

type maker struct {
	node  Node
	claim Claim
	// source is the object with the claim's text, and renew what a corrected one needs, for remedies.
	source, renew string
	// results are the allocation results of the plan's devices, by index. All GPUs of a group have the same one.
	results []*resourceapi.DeviceRequestAllocationResult
}

// devices returns the devices of a result: one, or the GPUs of a group in link order.
func (m maker) devices(result *resourceapi.DeviceRequestAllocationResult) ([]Device, error) {
	named, err := gpu.ParseName(result.Device)
	if err == nil && result.Pool != m.node.Pool &&
		(named.Kind != gpu.KindMonitor || result.Pool != m.node.MonitorPool) {
		err = fmt.Errorf("pool %q is not this node's (%q)", result.Pool, m.node.Pool)
	}
	if err != nil {
		return nil, m.claim.Refuse(result.Device, claimerror.UnknownDevice, err,
			"delete the pod and its claim so that the scheduler allocates again")
	}
	admin := result.AdminAccess != nil && *result.AdminAccess
	if named.Kind == gpu.KindMonitor && !admin {
		return nil, m.claim.Refuse(result.Device, claimerror.InvalidAllocation,
			errors.New("a monitor device is for monitoring only"),
			"set adminAccess: true on the request, or ask for the class gpu.nvidia.com to use a GPU")
	}
	members, err := m.members(result.Device, named)
	if err != nil {
		return nil, err
	}
	var out []Device
	for _, address := range members {
		found, ok := m.node.Snapshot.ByAddress(address)
		if !ok {
			return nil, m.missing(result.Device, address)
		}
		d := Device{
			Request: result.Request, Pool: result.Pool, Name: result.Device, Kind: named.Kind, Admin: admin,
			PCIAddress: found.PCIAddress, UUID: found.UUID, Minor: found.Minor,
		}
		if m.node.Metadata {
			d.ProductName = found.ProductName
		}
		if named.Kind == gpu.KindMIG {
			if d.Partition, err = partition(found.MIG, named); err != nil {
				return nil, m.claim.Refuse(result.Device, claimerror.UnknownDevice, err,
					"the kubelet retries; if it persists, delete the pod and its claim so that the scheduler "+
						"allocates again")
			}
		}
		if result.ShareID != nil {
			d.ShareID = string(*result.ShareID)
		}
		out = append(out, d)
	}
	return out, nil
}

// members returns the PCI addresses of a device's GPUs. A group's are those that the node's links define now, because
// they are published under its name.
func (m maker) members(device string, named gpu.Device) ([]string, error) {
	if named.Kind != gpu.KindGroup {
		return []string{named.PCIAddress}, nil
	}
	var prepared []string
	for _, d := range m.node.Prepared.Devices {
		if d.Name == device && !slices.Contains(prepared, d.PCIAddress) {
			prepared = append(prepared, d.PCIAddress)
		}
	}
	if len(prepared) > 0 {
		return prepared, nil
	}
	if group, ok := topology.At(topology.Find(m.node.Snapshot.GPUs), named.Size, named.PCIAddress); ok {
		return group.Members, nil
	}
	if _, ok := m.node.Snapshot.ByAddress(named.PCIAddress); !ok {
		return nil, m.missing(device, named.PCIAddress)
	}
	return nil, m.claim.Refuse(device, claimerror.DeviceNotReady,
		fmt.Errorf("NVLink no longer connects %d GPUs from %s on", named.Size, named.PCIAddress),
		"run nvidia-smi nvlink --status on the node; delete the pod and its claim so that it is scheduled elsewhere")
}

// partition returns the partition with this profile and start on the GPU.
func partition(m gpu.MIG, named gpu.Device) (Partition, error) {
	profile, ok := m.ProfileNamed(named.Profile)
	if !ok {
		if m.Fault != "" {
			return Partition{}, fmt.Errorf("the GPU's MIG profiles cannot be read: %s", m.Fault)
		}
		return Partition{}, fmt.Errorf("the GPU offers no MIG profile %s", named.Profile)
	}
	for _, at := range profile.Placements {
		if at.Start == named.Start {
			return Partition{Profile: profile.Name, Start: at.Start, Size: at.Size,
				MemoryBytes: profile.MemoryBytes}, nil
		}
	}
	return Partition{}, fmt.Errorf("the GPU offers no placement of MIG profile %s at slice %d",
		named.Profile, named.Start)
}

const lostRemedy = "reset the GPU or reboot the node, or delete the pod so that it is scheduled elsewhere"

func (m maker) missing(device, address string) error {
	if m.node.Snapshot.Driver.Version == "" {
		return m.claim.Refuse(device, claimerror.DriverNotReady,
			errors.New("the NVIDIA driver is not loaded on this node"),
			"load the driver on the node (nvidia-smi must work there); the pod starts afterwards")
	}
	for _, p := range m.node.Snapshot.Problems {
		if p.PCIAddress != address {
			continue
		}
		reason, remedy := claimerror.DeviceNotReady, "see the node's kernel log for NVRM messages with that address"
		if p.Lost {
			reason, remedy = claimerror.DeviceLost, lostRemedy
		}
		return m.claim.Refuse(device, reason, errors.New(p.Message), remedy)
	}
	if m.node.Snapshot.Gone(address) {
		return m.claim.Refuse(device, claimerror.DeviceLost,
			fmt.Errorf("%s at PCI address %s", gpu.GoneText, address), lostRemedy)
	}
	return m.claim.Refuse(device, claimerror.UnknownDevice,
		fmt.Errorf("no GPU is at PCI address %s now", address),
		"bring the GPU back, or delete the pod and its claim so that it is scheduled elsewhere")
}
