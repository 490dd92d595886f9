// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package resourceslices says what a node publishes: a Snapshot in, the devices of its pool out, slice by slice.
//
// The result depends on the arguments alone and is the same to the byte for the same hardware, however its GPUs were
// enumerated. What cannot be said safely is left out and becomes a Warning; one bad GPU never spoils the pool.
//
// Traps. The scheduler charges only for devices that it can see: one that a claim holds is published until it is
// released, whatever became of its GPU. A server without device taints would hand monitor devices and unhealthy GPUs to
// anybody, so what needs a taint is not published there. Attribute names without a domain are in the driver's own.
package resourceslices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/sharing"
	"gpu-dra-driver/pkg/topology"
)

// Pool is what a node publishes.
type Pool struct {
	Name string
	// Slices are in the order the scheduler is to try them, devices likewise.
	Slices []Slice
}

// Slice is one object of the API: it holds devices or counters, never both.
type Slice struct {
	Devices        []resourceapi.Device     `json:"devices,omitempty"`
	SharedCounters []resourceapi.CounterSet `json:"sharedCounters,omitempty"`
}

// Options say for whom and for what server the slices are.
type Options struct {
	// Node is the node's name.
	Node string
	// Taints, SharedDevices and Counters say that the server keeps device taints (DRADeviceTaints),
	// allowMultipleAllocations (DRAConsumableCapacity), and shared counters (DRAPartitionableDevices).
	Taints, SharedDevices, Counters bool
	// AllowReset says that a MIG mode may be switched where that needs a reset of the GPU.
	AllowReset bool
	// Switched are the PCI addresses of the GPUs whose MIG mode this driver turned on; of others it is foreign.
	Switched map[string]bool
	// Foreign are the partitions that no claim's record owns, by PCI address: an administrator made them.
	Foreign map[string][]gpu.Partition
	// Held are the devices that a claim's record names.
	Held []Held
	// Offer says what of a GPU, or a MIG profile of it, can be had in shares; false: nothing. Nil: of none.
	Offer func(g gpu.GPU, profile string) (sharing.Offer, bool)
}

// Held is a device that some claim has, or a GPU of a group that one has.
type Held struct {
	// Device is of a group the group: its GPUs are held one by one.
	Device gpu.Device
	// Size and MemoryBytes are a MIG device's; 0 where they are not known.
	Size        int
	MemoryBytes uint64
	// Foreign says that it is an administrator's partition.
	Foreign bool
	// GPU is its GPU as it was last known, at least the PCI address.
	GPU gpu.GPU
}

// State is the value of the unhealthy taint.
type State string

// Why a GPU is not for new claims.
const (
	// Lost GPUs fell off the bus.
	Lost State = "lost"
	// Unreadable GPUs do not answer a query that they must.
	Unreadable State = "unreadable"
	// Absent GPUs are held by a claim, and the driver does not list them.
	Absent State = "absent"
	// MIGMode is not what the device needs, and is not for this driver to change.
	MIGMode State = "mig-mode"
	// Foreign devices overlap a partition that an administrator made.
	Foreign State = "foreign-partition"
	// NVLink does not connect the GPUs of the group any more.
	NVLink State = "nvlink"
	// DevicePlugin GPUs are served by a device plugin of the node.
	DevicePlugin State = "device-plugin"
	// Withheld GPUs may belong to a claim whose record cannot be read.
	Withheld State = "withheld"
)

// Condition says why a GPU must not be given to new claims, though it can be read.
type Condition struct {
	State State
	// Message says what happened and what to do, for people.
	Message string
}

// Warning is something that is not published, or not as it should be.
type Warning struct {
	// Device is the device's name, empty where the GPU has no address.
	Device string
	// State is set where the whole GPU is affected; without it a detail was left out.
	State   State
	Message string
}

// PoolName is the name of a node's pool.
func PoolName(node string) string { return node + "/gpu" }

// Build makes the pool: the whole GPUs and the NVLink groups, the counters of what overlaps, then for each GPU its MIG
// devices and its monitor device. Slices are known by their place: however many others there are, wholes and groups are
// updated where they are. GPUs are in the order of their islands, a group stands behind the first of its GPUs. So a
// request that does not say what it wants gets a whole GPU, and one for a GPU or a group is answered without a look at what
// GPUs can be cut into. Conditions are by PCI address.
func Build(snapshot gpu.Snapshot, conditions map[string]Condition, o Options) (Pool, []Warning) {
	b := builder{driver: snapshot.Driver, o: o, islands: topology.Find(snapshot.GPUs), pool: Pool{Name: PoolName(o.Node)}}
	b.labels = labels(b.islands)
	gpus := b.gpuStates(snapshot, conditions)
	groups := b.groups(gpus)
	nvlink := b.nvlinkCounters(groups)
	var sets []resourceapi.CounterSet
	var cut [][]resourceapi.Device // of each GPU with partitions
	var wholes, monitors []resourceapi.Device
	for _, g := range gpus {
		whole, partitions, set := b.devices(g, nvlink)
		if set != nil {
			sets = append(sets, *set)
		}
		wholes = append(wholes, whole...)
		if len(partitions) > 0 {
			cut = append(cut, append(partitions, b.monitors(g)...))
		} else {
			monitors = append(monitors, b.monitors(g)...)
		}
	}
	if set := nvlink.set(); set != nil {
		sets = append(sets, *set)
	}
	b.add(b.withGroups(wholes, groups, nvlink))
	for chunk := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
		b.pool.Slices = append(b.pool.Slices, Slice{SharedCounters: chunk})
	}
	for _, devices := range cut {
		b.add(devices)
	}
	b.add(monitors)
	slices.SortStableFunc(b.warnings, func(x, y Warning) int {
		return cmp.Or(cmp.Compare(x.Device, y.Device), cmp.Compare(x.State, y.State), cmp.Compare(x.Message, y.Message))
	})
	return b.pool, b.warnings
}

type builder struct {
	driver   gpu.Driver
	o        Options
	pool     Pool
	warnings []Warning
	islands  []topology.Island
	// labels are the NVLink groups that GPUs are in, by PCI address.
	labels map[string]string
	// last is the geometry worked out last: the GPUs of a node are mostly alike.
	last geometry
}

// add puts devices into slices of their own.
func (b *builder) add(devices []resourceapi.Device) {
	for chunk := range slices.Chunk(devices, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		b.pool.Slices = append(b.pool.Slices, Slice{Devices: chunk})
	}
}

func (b *builder) warn(device string, state State, format string, args ...any) {
	b.warnings = append(b.warnings, Warning{Device: device, State: state, Message: fmt.Sprintf(format, args...)})
}
