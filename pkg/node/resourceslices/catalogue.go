// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"math"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// Entry describes an attribute or capacity for the reference documentation.
type Entry struct {
	// Name is the published name. Without a domain it is in the driver's own.
	Name string
	// Capacity distinguishes capacities from attributes.
	Capacity bool
	// Type is string, bool, int, version or quantity.
	Type string
	// Devices are the kinds of devices with this entry.
	Devices []gpu.Kind
	// Always are the kinds of which every device has it, whatever its GPU and driver. An unknown value is published
	// as the method unknown returns it: a selector that reads an attribute that one device lacks ends every allocation.
	Always []gpu.Kind
	// LeftOut is the order in which entries are left out of a device with more than the API allows: 1 is left out
	// first. Entries with 0 are never left out: selectors, classes, labels and readers of slices need them.
	LeftOut int
	// Meaning explains the value and when it is missing.
	Meaning string
	Source  string
}

// Catalogue lists all attributes, then all capacities, in the order of the documentation.
func Catalogue() []Entry {
	var out []Entry
	for _, a := range attributes {
		out = append(out, a.Entry)
	}
	for _, c := range capacities {
		out = append(out, c.Entry)
	}
	return out
}

// leftOutFirst are the names of the entries that can be left out of a device, in this order.
var leftOutFirst = func() (names []resourceapi.QualifiedName) {
	optional := slices.DeleteFunc(Catalogue(), func(e Entry) bool { return e.LeftOut == 0 })
	slices.SortFunc(optional, func(a, b Entry) int { return a.LeftOut - b.LeftOut })
	for _, e := range optional {
		names = append(names, resourceapi.QualifiedName(e.Name))
	}
	return names
}()

// fit leaves entries out of a device until the API server accepts it. Both forms of a device that can be shared later
// have the same number of entries, so the same are left out of both, and Shareable needs no order.
func fit(d *resourceapi.Device) {
	for _, name := range leftOutFirst {
		if len(d.Attributes)+len(d.Capacity) <= resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
			return
		}
		delete(d.Attributes, name)
		delete(d.Capacity, name)
	}
}

type attribute struct {
	Entry
	value value
}

// unknown returns the value of an attribute that every device has, for a device of which it is not known. Nothing that
// a selector asks for equals it, and no version or number is smaller.
func (e Entry) unknown() *resourceapi.DeviceAttribute {
	switch e.Type {
	case "int":
		return &resourceapi.DeviceAttribute{IntValue: new(int64(-1))}
	case "bool":
		return &resourceapi.DeviceAttribute{BoolValue: new(false)}
	case "version":
		return &resourceapi.DeviceAttribute{VersionValue: new(wire.UnknownVersion)}
	}
	return &resourceapi.DeviceAttribute{StringValue: new("")}
}

type capacity struct {
	Entry
	quantity func(attributeSource) *resource.Quantity
	// policy returns a share's part of the capacity. Nil: shares do not consume it.
	policy func(o sharing.Offer, has resource.Quantity) *resourceapi.CapacityRequestPolicy
}

// requestPolicy returns the API's policy. A shared device needs one for every capacity: otherwise the first share takes
// it all. Claims of a monitor device consume nothing.
func (c capacity) requestPolicy(s attributeSource) *resourceapi.CapacityRequestPolicy {
	monitor := s.device.Kind == gpu.KindMonitor
	switch {
	case s.offer == nil && !monitor:
		return nil
	case c.policy == nil || monitor:
		return &resourceapi.CapacityRequestPolicy{Default: amount(0),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: amount(0)}}
	}
	return c.policy(*s.offer, *c.quantity(s))
}

// count returns a numeric capacity, or none if the number is unknown.
func count(get func(attributeSource) (n int, known bool)) func(attributeSource) *resource.Quantity {
	return func(s attributeSource) *resource.Quantity {
		if n, known := get(s); known {
			return amount(int64(n))
		}
		return nil
	}
}

func amount(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }

func bytes(n uint64) *resource.Quantity { return resource.NewQuantity(int64(n), resource.BinarySI) }

// Lists of kinds, for Entry.Devices and Entry.Always. A monitor device has what every GPU has: a class that asks only
// for such attributes, without the type, must not fail on it.
var (
	allKinds     = []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindGroup, gpu.KindMonitor}
	ofOneGPU     = []gpu.Kind{gpu.KindGPU, gpu.KindMIG, gpu.KindMonitor}
	gpuOrMIG     = []gpu.Kind{gpu.KindGPU, gpu.KindMIG}
	gpuOrGroup   = []gpu.Kind{gpu.KindGPU, gpu.KindGroup}
	gpuOrMonitor = []gpu.Kind{gpu.KindGPU, gpu.KindMonitor}
	gpuOnly      = []gpu.Kind{gpu.KindGPU}
	migOnly      = []gpu.Kind{gpu.KindMIG}
	groupOnly    = []gpu.Kind{gpu.KindGroup}
)

var attributes = []attribute{
	{Entry{
		Name:    "type",
		Type:    "string",
		Devices: allKinds,
		Always:  allKinds,
		Source:  "the driver",
		Meaning: "The kind of device: gpu (a whole GPU), mig (a MIG partition that exists or is created for its " +
			"claim), nvlink-group (several GPUs with NVLink between every two) or monitor (a GPU to monitor with " +
			"admin access).",
	},
		text(func(s attributeSource) string { return string(s.device.Kind) })},
	{Entry{
		Name:    "uuid",
		Type:    "string",
		Devices: ofOneGPU,
		Always:  gpuOrMonitor,
		Source:  "nvmlDeviceGetUUID",
		Meaning: "The GPU's UUID as nvidia-smi -L shows it. It identifies the board, not the slot. A mig device has " +
			"the UUID of its partition if an administrator created it, and none before it is created for a claim.",
	},
		text(func(s attributeSource) string { return s.uuid })},
	{Entry{Name: "parentUUID", Type: "string", Devices: migOnly, Always: migOnly, Source: "nvmlDeviceGetUUID",
		Meaning: "The UUID of the partition's GPU."},
		text(func(s attributeSource) string { return s.gpu.UUID })},
	{Entry{Name: "profile", Type: "string", Devices: migOnly, Always: migOnly,
		Source:  "nvmlDeviceGetGpuInstanceProfileInfoV",
		Meaning: "The MIG profile, such as 1g.10gb."},
		text(func(s attributeSource) string { return s.device.Profile })},
	{Entry{
		Name:    "productName",
		Type:    "string",
		Devices: allKinds,
		Always:  allKinds,
		Source:  "nvmlDeviceGetName",
		Meaning: "The model as nvidia-smi shows it, such as NVIDIA H100 80GB HBM3. A mig device has its GPU's model; " +
			"a group has the common model of its GPUs.",
	},
		text(func(s attributeSource) string { return s.gpu.ProductName })},
	{Entry{Name: "brand", Type: "string", Devices: allKinds, Source: "nvmlDeviceGetBrand",
		Meaning: "The product family, such as Tesla or Nvidia. Missing if the driver reports none."},
		text(func(s attributeSource) string { return s.gpu.Brand })},
	{Entry{Name: "architecture", Type: "string", Devices: allKinds, Always: allKinds,
		Source:  "nvmlDeviceGetArchitecture",
		Meaning: "The generation, such as Ampere, Hopper or Ada Lovelace."},
		text(func(s attributeSource) string { return s.gpu.Architecture })},
	{Entry{Name: "cudaComputeCapability", Type: "version", Devices: allKinds, Always: allKinds,
		Source:  "nvmlDeviceGetCudaComputeCapability",
		Meaning: "The CUDA compute capability with a third part of 0, such as 9.0.0."},
		version(func(s attributeSource) string { return versionText(s.gpu.ComputeCapability) })},
	{Entry{Name: "driverVersion", Type: "version", Devices: allKinds, Always: allKinds,
		Source:  "nvmlSystemGetDriverVersion",
		Meaning: "The kernel driver's version as a semantic version: 580.126.09 is published as 580.126.9."},
		version(func(s attributeSource) string { return s.driver.Version })},
	{Entry{Name: "driverVersionRaw", Type: "string", Devices: gpuOrMonitor, Always: gpuOrMonitor,
		Source:  "nvmlSystemGetDriverVersion",
		Meaning: "The kernel driver's version as the driver spells it, such as 580.126.09."},
		text(func(s attributeSource) string { return s.driver.Version })},
	{Entry{Name: "cudaDriverVersion", Type: "version", Devices: allKinds, Always: allKinds,
		Source:  "nvmlSystemGetCudaDriverVersion_v2",
		Meaning: "The newest CUDA version that the driver supports, such as 13.0.0."},
		version(func(s attributeSource) string { return versionText(s.driver.CUDA) })},
	{Entry{Name: "addressingMode", Type: "string", Devices: gpuOrMIG, LeftOut: 8, Source: "nvmlDeviceGetAddressingMode",
		Meaning: "How the GPU addresses system memory: HMM, ATS or None. Missing if the driver does not report it."},
		text(func(s attributeSource) string { return s.gpu.AddressingMode })},
	{Entry{Name: string(deviceattribute.StandardDeviceAttributePCIBusID), Type: "string", Devices: ofOneGPU,
		Always: ofOneGPU, Source: "nvmlDeviceGetPciInfo_v3",
		Meaning: "The PCI address, such as 0000:1b:00.0."},
		text(func(s attributeSource) string { return s.gpu.PCIAddress })},
	{Entry{
		Name:    string(deviceattribute.StandardDeviceAttributePCIeRoot),
		Type:    "string",
		Devices: allKinds,
		Source:  "sysfs",
		Meaning: "The PCIe root complex, such as pci0000:15. It is equal for a GPU and a network card that are near " +
			"each other. A group has one if its GPUs share it.",
	},
		text(func(s attributeSource) string { return s.gpu.PCIeRoot })},
	{Entry{Name: string(deviceattribute.StandardDeviceAttributeNUMANode), Type: "int", Devices: allKinds,
		Source:  "sysfs",
		Meaning: "The NUMA node. Missing if the machine assigns none. A group has one if its GPUs share it."},
		number(func(s attributeSource) (int, bool) { return ptr.Deref(s.gpu.NUMANode, 0), s.gpu.NUMANode != nil })},
	{Entry{Name: "index", Type: "int", Devices: gpuOrMonitor, Always: gpuOrMonitor, Source: "NVML's enumeration",
		Meaning: "The number that nvidia-smi shows. It can change with every boot and does not identify the device."},
		number(func(s attributeSource) (int, bool) { return s.gpu.Index, true })},
	{Entry{Name: "migCapable", Type: "bool", Devices: gpuOrMonitor, Always: gpuOrMonitor,
		Source:  "nvmlDeviceGetMigMode",
		Meaning: "Whether the GPU supports MIG, in whichever mode it is now."},
		boolean(func(s attributeSource) bool { return s.gpu.MIG.Capable })},
	{Entry{
		Name:    string(wire.MIGLayoutAttribute),
		Type:    "string",
		Devices: gpuOnly,
		Source:  "the driver and the node's settings",
		Meaning: "A hash of the partitions that the node publishes of the GPU, now or once an object asks for them. " +
			"Until then one node with the same value publishes a placement of each profile. Missing for a GPU that " +
			"the node does not partition. Do not select by it: versions of the driver can change it.",
	},
		text(func(s attributeSource) string { return s.migLayout })},
	{Entry{
		Name:    "mpsCapable",
		Type:    "bool",
		Devices: gpuOrMonitor,
		Always:  gpuOrMonitor,
		Source:  "compute capability and brand",
		Meaning: "Whether MPS can limit the memory and SMs of its clients: from compute capability 7.0 on, except in " +
			"vGPU guests.",
	},
		boolean(func(s attributeSource) bool { return s.gpu.MPSCapable })},
	{Entry{
		Name:    "nvlinkGroup",
		Type:    "string",
		Devices: gpuOrGroup,
		Source:  "nvmlDeviceGetNvLinkState, nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemotePciInfo_v2",
		Meaning: "The group of GPUs with NVLink between every two, through switches or directly. Use it in " +
			"matchAttribute. Missing for a GPU without such peers.",
	},
		text(func(s attributeSource) string { return s.group })},
	{Entry{Name: "nvlinkLinks", Type: "int", Devices: gpuOnly, LeftOut: 7, Source: "nvmlDeviceGetNvLinkState",
		Meaning: "The number of its NVLinks that are up. Missing for a GPU in no NVLink group."},
		number(func(s attributeSource) (int, bool) { return len(s.gpu.Links), s.group != "" })},
	{Entry{
		Name:    "nvlinkVersion",
		Type:    "int",
		Devices: gpuOnly,
		LeftOut: 1,
		Source:  "nvmlDeviceGetNvLinkVersion",
		Meaning: "The NVLink generation as NVML numbers it. Missing if NVML does not report it, and for a GPU in no " +
			"NVLink group.",
	},
		number(func(s attributeSource) (int, bool) {
			newest := 0
			for _, l := range s.gpu.Links {
				newest = max(newest, l.Version)
			}
			return newest, s.group != "" && newest != 0
		})},
	{Entry{
		Name:    "fabricClusterUUID",
		Type:    "string",
		Devices: gpuOrGroup,
		Source:  "nvmlDeviceGetGpuFabricInfoV",
		Meaning: "The GPU's NVLink fabric, equal on every node of the fabric. Missing if the fabric ends at the " +
			"node's own board or the GPU is not registered.",
	},
		text(func(s attributeSource) string {
			if s.gpu.Fabric.State != gpu.FabricReady {
				return ""
			}
			return s.gpu.Fabric.ClusterUUID
		})},
	{Entry{
		Name:    "cliqueID",
		Type:    "int",
		Devices: gpuOrGroup,
		Source:  "nvmlDeviceGetGpuFabricInfoV",
		Meaning: "The part of the fabric whose GPUs reach each other, across nodes too. Missing if fabricClusterUUID " +
			"is missing.",
	},
		number(func(s attributeSource) (int, bool) {
			return s.gpu.Fabric.CliqueID, s.gpu.Fabric.State == gpu.FabricReady && s.gpu.Fabric.ClusterUUID != ""
		})},
	{Entry{Name: "gpuCount", Type: "int", Devices: groupOnly, Always: groupOnly, Source: "the driver",
		Meaning: "The number of GPUs in the group."},
		func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
			return &resourceapi.DeviceAttribute{IntValue: new(int64(s.device.Size))}, ""
		}},
	{Entry{
		Name:    "isolation",
		Type:    "string",
		Devices: ofOneGPU,
		Always:  ofOneGPU,
		Source:  "the driver and the node's settings",
		Meaning: "The isolation between shares of the device: mps (MPS limits the memory and SMs of its clients), " +
			"time-slicing (shares take turns; only memoryLimit can limit them) or hardware (the device is not " +
			"shared). A monitor device has none.",
	},
		text(func(s attributeSource) string {
			switch {
			case s.device.Kind == gpu.KindMonitor:
				return "none"
			case s.offer == nil:
				return "hardware"
			}
			return sharing.Of(s.offer.Strategy).Isolation
		})},
	{Entry{
		Name:    string(shareIsolation),
		Type:    "string",
		Devices: gpuOrMIG,
		Source:  "the driver and the node's settings",
		Meaning: "The value of isolation once claims can share the device. Missing if they can now, and if they " +
			"never can. The node shares it once an object asks for shares.",
	},
		text(func(s attributeSource) string {
			if s.later == nil {
				return ""
			}
			return sharing.Of(s.later.Strategy).Isolation
		})},
	{Entry{
		Name:    string(maxShares),
		Type:    "int",
		Devices: gpuOrMIG,
		Source:  "CUDA MPS documentation, the node's settings",
		Meaning: "The capacity shares once claims can share the device. Missing if they can now, and if they " +
			"never can.",
	},
		func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
			if s.later == nil {
				return nil, ""
			}
			return &resourceapi.DeviceAttribute{IntValue: new(int64(s.later.MaxShares))}, ""
		}},
	{Entry{
		Name:    "memoryLimit",
		Type:    "string",
		Devices: gpuOnly,
		Source:  "nvmlDeviceGetMemoryLimits_v1 and the node's settings",
		Meaning: "container if the driver limits all processes of a container together to the memory of their share, " +
			"by any strategy (CUDA 13.4, cgroup v2). Missing otherwise.",
	},
		text(func(s attributeSource) string {
			if s.offer == nil && s.later == nil || !s.gpu.MemoryLimits {
				return ""
			}
			return "container"
		})},
	{Entry{
		Name:    "renameByDefault",
		Type:    "bool",
		Devices: gpuOrMIG,
		Source:  "the node's settings",
		Meaning: "True if the node's sharing settings have renameByDefault, so the node's label of the product lacks " +
			"-SHARED. Missing otherwise.",
	},
		func(s attributeSource) (*resourceapi.DeviceAttribute, string) {
			if s.offer == nil || !s.offer.Renamed {
				return nil, ""
			}
			return &resourceapi.DeviceAttribute{BoolValue: new(true)}, ""
		}},
	{Entry{
		Name:    "mode",
		Type:    "string",
		Devices: gpuOrMonitor,
		Source:  "sysfs",
		Meaning: "The kind of PCI device, for the node's label gpu.mode: compute (a 3D controller) or graphics (a " +
			"display controller).",
	},
		text(func(s attributeSource) string { return modes[s.gpu.Class] })},
	{Entry{Name: "machine", Type: "string", Devices: gpuOrMonitor, Source: "sysfs",
		Meaning: "The machine's product name by its firmware, for the node's label gpu.machine."},
		text(func(s attributeSource) string { return s.machine })},
}

// modes are the names that feature discovery gives to PCI classes.
var modes = map[string]string{"0x030200": "compute", "0x030000": "graphics"}

var capacities = []capacity{
	{Entry{
		Name:     "memory",
		Capacity: true,
		Type:     "quantity",
		Devices:  allKinds,
		Always:   allKinds,
		Source:   "nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetGpuInstanceProfileInfoV",
		Meaning: "The total memory in bytes, including the driver's reserve: of the board, of a mig device's " +
			"partition, or of all GPUs of a group. 0 if NVML does not report it.",
	},
		func(s attributeSource) *resource.Quantity {
			n := s.gpu.MemoryBytes
			if s.device.Kind == gpu.KindMIG {
				n = s.profile.MemoryBytes
			}
			if n == 0 || n > math.MaxInt64 {
				return nil
			}
			return bytes(n)
		},
		func(o sharing.Offer, has resource.Quantity) *resourceapi.CapacityRequestPolicy {
			maxBytes := uint64(has.Value()) / sharing.Step * sharing.Step
			return &resourceapi.CapacityRequestPolicy{Default: bytes(o.Memory),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{
					Min: bytes(sharing.MinMemory), Max: bytes(maxBytes), Step: bytes(sharing.Step),
				}}
		}},
	{Entry{
		Name:     "compute",
		Capacity: true,
		Type:     "quantity",
		Devices:  gpuOrMIG,
		Source:   "the driver",
		Meaning: "The SMs of the device in percent, to be requested by shares. MPS limits a share's processes to " +
			"its request. Missing if the device is not shared.",
	},
		count(func(s attributeSource) (int, bool) { return 100, s.offer != nil }),
		func(o sharing.Offer, _ resource.Quantity) *resourceapi.CapacityRequestPolicy {
			return &resourceapi.CapacityRequestPolicy{Default: amount(int64(o.Compute)),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{
					Min: amount(0), Max: amount(100), Step: amount(1),
				}}
		}},
	{Entry{Name: "shares", Capacity: true, Type: "quantity", Devices: gpuOrMIG,
		Source:  "CUDA MPS documentation, the node's settings",
		Meaning: "The maximum number of concurrent shares of the device. Missing if the device is not shared."},
		count(func(s attributeSource) (int, bool) {
			return ptr.Deref(s.offer, sharing.Offer{}).MaxShares, s.offer != nil
		}),
		func(sharing.Offer, resource.Quantity) *resourceapi.CapacityRequestPolicy {
			return &resourceapi.CapacityRequestPolicy{Default: amount(1), ValidValues: []resource.Quantity{*amount(1)}}
		}},
	{Entry{
		Name:     "multiprocessors",
		Capacity: true,
		Type:     "quantity",
		Devices:  gpuOrMIG,
		Source:   "nvmlDeviceGetNumGpuCores, by compute capability; nvmlDeviceGetGpuInstanceProfileInfoV",
		Meaning: "The number of streaming multiprocessors. Missing for a compute capability that this version does " +
			"not know.",
	},
		count(func(s attributeSource) (int, bool) {
			n := s.gpu.Multiprocessors
			if s.device.Kind == gpu.KindMIG {
				n = s.profile.Multiprocessors
			}
			return n, n > 0
		}), nil},
	engines(5, "copyEngines", "copy engines", func(p gpu.Profile) int { return p.CopyEngines }),
	engines(6, "decoders", "video decoders", func(p gpu.Profile) int { return p.Decoders }),
	engines(4, "encoders", "video encoders", func(p gpu.Profile) int { return p.Encoders }),
	engines(3, "jpegEngines", "JPEG decoders", func(p gpu.Profile) int { return p.JPEGEngines }),
	engines(2, "ofaEngines", "optical flow accelerators", func(p gpu.Profile) int { return p.OFAEngines }),
}

// engines returns the capacity of one kind of engine, which is 0 for a partition without them.
func engines(leftOut int, name, what string, of func(gpu.Profile) int) capacity {
	return capacity{
		Entry{Name: name, Capacity: true, Type: "quantity", Devices: gpuOrMIG, LeftOut: leftOut,
			Source:  "nvmlDeviceGetGpuInstanceProfileInfoV",
			Meaning: "The number of " + what + ". Missing for a GPU without MIG, because NVML does not report it."},
		count(func(s attributeSource) (int, bool) {
			p := ptr.Deref(s.profile, gpu.Profile{})
			return of(p), p.Slices != 0
		}), nil,
	}
}
