// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"cmp"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/gpu/topology"
	"gpu-dra-driver/pkg/wire"
)

// Pool holds the published devices of a node.
type Pool struct {
	Name string
	// Slices and their devices are in the order in which the scheduler tries them.
	Slices []Slice
}

// Slice is one API object. It holds either devices or counters.
type Slice struct {
	Devices        []resourceapi.Device     `json:"devices,omitempty"`
	SharedCounters []resourceapi.CounterSet `json:"sharedCounters,omitempty"`
}

// Settings are the settings of a node.
type Settings struct {
	// Evict has the states whose taint has the effect NoExecute, so that Kubernetes evicts the pods of a device.
	Evict []string
	// NoPartitions and NoMonitors withdraw MIG partitions and monitor devices, except for the held ones.
	NoPartitions, NoMonitors bool
	// AllowReset allows switches of the MIG mode that need a reset of the GPU.
	AllowReset bool
}

type Options struct {
	Settings
	Node string
	// Taints, SharedDevices and Counters mean that the API server keeps device taints (DRADeviceTaints),
	// allowMultipleAllocations (DRAConsumableCapacity) and shared counters (DRAPartitionableDevices).
	Taints, SharedDevices, Counters bool
	// HeldShares means that SharedDevices is false because of the scheduler, although the API server keeps the field.
	// Devices that claims share, or monitor, stay as they are until the release.
	HeldShares bool
	// NoEffectTaints means that the API server keeps device taints with the effect None (1.35 and newer).
	NoEffectTaints bool
	// Switched has the PCI addresses of GPUs whose MIG mode this driver switched on. On others the mode is external.
	Switched map[string]bool
	// External holds the external partitions, which no claim's record owns, by PCI address.
	External map[string][]gpu.Partition
	// Stuck holds the partitions of ended claims that could not be destroyed, by PCI address.
	Stuck map[string][]gpu.Partition
	// Holders are the programs that have a GPU open, so that its MIG mode cannot be switched on, by PCI address.
	Holders map[string]string
	// Held lists the devices in claims' records.
	Held []Held
	// Cordons are the GPUs that administrators took out of use.
	Cordons wire.Cordons
	// Reserved are the addresses of the GPUs of which no new claim gets a device now. An API server without taints
	// ignores it.
	Reserved sets.Set[string]
	// Sharing says which devices to publish to new claims, and which are shared. Nil: all, and none.
	Sharing sharing.Source
}

// Held is a device of a claim, or one GPU of a claim's group.
type Held struct {
	// Device is the group itself for each GPU of a group.
	Device gpu.Device
	// Size and MemoryBytes describe a MIG device; 0 means unknown.
	Size        int
	MemoryBytes uint64
	// External means that the partition is external.
	External bool
	// Shared is the strategy of the claim's share; empty: the claim has the whole device.
	Shared v1beta1.Strategy
	// Share means that the allocation is a share, possibly of the whole device. The scheduler counts such allocations
	// only while the device allows several.
	Share bool
	// GPU is the last known state of its GPU, with at least the PCI address.
	GPU gpu.GPU
}

// State is the value of the unhealthy taint.
type State string

// The reasons why a device is unavailable to new claims, beside the states of pkg/gpu/health.
const (
	// Lost GPUs are off the bus. It is a state of pkg/gpu/health too.
	Lost State = health.Lost
	// Unreadable GPUs failed a required query.
	Unreadable State = "unreadable"
	// Absent GPUs are held by a claim but no longer listed by the driver.
	Absent State = "absent"
	// MIGMode is wrong for the device, and this driver may not switch it.
	MIGMode State = "mig-mode"
	// External devices overlap an external partition.
	External State = "external-partition"
	// Stuck devices overlap a partition of an ended claim, which NVML does not destroy.
	Stuck State = "stuck-partition"
	// InUse partitions need a MIG mode that cannot be switched on, because a program has the GPU open.
	InUse State = "in-use"
	// NVLink no longer connects the GPUs of the group.
	NVLink State = "nvlink"
	// DevicePlugin GPUs are served by a device plugin of the node.
	DevicePlugin State = "device-plugin"
	// Withheld GPUs may belong to a claim with an unreadable record.
	Withheld State = "withheld"
	// Unknown GPUs were readable, but NVML has not answered for a while.
	Unknown State = "unknown"
	// NotReady GPUs answer, but the driver on the node is not complete, so that no claim can be prepared.
	NotReady State = "not-ready"
	// NoDemand partitions and groups are withdrawn soon, because no object asks for them.
	NoDemand State = "no-demand"
	// Cordoned GPUs are out of use on an API server without taints; elsewhere they have the CordonTaint.
	Cordoned State = "cordoned"
)

// temporary means that the devices stay published, with taints where the server has them.
func (s State) temporary() bool {
	return s == Withheld || s == Unknown || s == NotReady || s == NoDemand || s == Stuck || s == InUse || s.fault()
}

// fault means that the driver answers, but reports a fault of the GPU. The state is one of pkg/gpu/health. Lost GPUs
// are withdrawn, whether they answer or not.
func (s State) fault() bool {
	_, ok := health.Lookup(string(s))
	return ok && s != Lost
}

// groupsOnly means that the GPU's own devices are available.
func (s State) groupsOnly() bool {
	f, _ := health.Lookup(string(s))
	return f.GroupsOnly
}

// Condition is the reason why a readable GPU is unavailable to new claims.
type Condition struct {
	State State
	// Message holds the cause and the remedy, for an administrator.
	Message string
}

// Warning reports a device that is not published, or not completely.
type Warning struct {
	// Device is the device's name, empty if the GPU has no address.
	Device string
	// State is the reason if the whole device is affected; without it only a detail is missing.
	State   State
	Message string
}

// Build returns the slices of both pools: whole GPUs and NVLink groups first, then counters, then for each GPU its MIG
// devices. The monitor devices come last, in the pool of MonitorPoolName. Slices are identified by their position, so
// whole GPUs and groups come first: they can be updated in place. GPUs are in the order of their islands, or in the one
// of partsLast, and a group follows the first of its GPUs. Thus an unspecific request gets a whole GPU, and the
// scheduler finds GPUs and groups before it tries partitions. conditions are by PCI address.
func Build(snapshot gpu.Snapshot, conditions map[string]Condition, o Options) (Pool, []Warning) {
	b := builder{driver: snapshot.Driver, machine: snapshot.Machine, o: o, islands: topology.Find(snapshot.GPUs),
		pool: Pool{Name: wire.PoolName(o.Node)}, onDemand: map[[2]string]bool{}}
	b.labels = labels(b.islands)
	gpus := b.gpuStates(snapshot, conditions)
	groups := b.groups(gpus)
	nvlink := b.nvlinkCounters(groups)
	var sets []resourceapi.CounterSet
	var cut [][]resourceapi.Device // By GPU with partitions.
	var wholes, monitors []resourceapi.Device
	var all []published
	for _, g := range gpus {
		all = append(all, b.devices(g, nvlink))
		monitors = append(monitors, b.monitors(g)...)
	}
	for _, p := range partsLast(all, true) {
		wholes = append(wholes, p.whole...)
	}
	for _, p := range partsLast(all, false) {
		if p.set != nil {
			sets = append(sets, *p.set)
		}
		if len(p.partitions) > 0 {
			cut = append(cut, p.partitions)
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

// published are the devices of a GPU, but for groups and its monitor device.
type published struct {
	whole, partitions []resourceapi.Device
	set               *resourceapi.CounterSet
	// cut means that there are partitions beside those of which the node has one.
	cut bool
}

// serves reports whether claims can get a partition of the GPU, or a share if shares count.
func (p published) serves(shares bool) bool {
	return p.cut || shares && slices.ContainsFunc(p.whole, func(d resourceapi.Device) bool {
		return ptr.Deref(d.AllowMultipleAllocations, false)
	})
}

// partsLast moves the GPUs of which claims can get a part behind the others, so that claims of whole GPUs take them
// last, and reverses their order. Without shares only partitions count. The next GPU to serve is the last of the
// others, so claims of parts fill a GPU before they take from another one. The order stays if all serve.
func partsLast(gpus []published, shares bool) []published {
	var plain, serving []published
	for _, p := range gpus {
		if p.serves(shares) {
			serving = append(serving, p)
		} else {
			plain = append(plain, p)
		}
	}
	if !slices.ContainsFunc(plain, func(p published) bool { return len(p.whole) > 0 }) {
		return gpus
	}
	slices.Reverse(serving)
	return append(plain, serving...)
}

type builder struct {
	driver   gpu.Driver
	machine  string
	o        Options
	pool     Pool
	warnings []Warning
	islands  []topology.Island
	// labels are the NVLink groups of GPUs, by PCI address.
	labels map[string]string
	// onDemand are the models and profiles of which a placement is published although no object asks for them.
	onDemand map[[2]string]bool
	// last is the previous result of geometry, because the GPUs of a node are usually equal.
	last geometry
}

// add appends slices with these devices.
func (b *builder) add(devices []resourceapi.Device) {
	for chunk := range slices.Chunk(devices, resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures) {
		b.pool.Slices = append(b.pool.Slices, Slice{Devices: chunk})
	}
}

func (b *builder) warn(device string, state State, format string, args ...any) {
	b.warnings = append(b.warnings, Warning{Device: device, State: state, Message: fmt.Sprintf(format, args...)})
}
