// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 holds the opaque parameters that claims and DeviceClasses may carry for this driver, in the group
// resource.nvidia.com that users of NVIDIA's DRA driver write.
//
// Decoding is strict: an unknown kind, field or type is an error that names it, because a parameter that is quietly
// ignored is a GPU that is quietly not what was asked for.
package v1beta1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// GroupVersion is the apiVersion of every parameter kind.
const GroupVersion = "resource.nvidia.com/v1beta1"

// The kinds.
const (
	KindGPUConfig       = "GpuConfig"
	KindMIGDeviceConfig = "MigDeviceConfig"
)

// Config is a parameter object of either kind: the parameters of a GPU, whole or in shares, or of a MIG partition. Without
// settings the defaults hold.
type Config struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Sharing    *Sharing `json:"sharing,omitempty"`
	// Topology is for KindGPUConfig only: for whole GPUs and groups of them.
	Topology *Topology `json:"topology,omitempty"`
}

// Topology says what containers are told of how the GPUs of the request are wired.
type Topology struct {
	// CUDAVisibleDevices sets CUDA_VISIBLE_DEVICES to them, those that NVLink connects best side by side.
	CUDAVisibleDevices bool `json:"cudaVisibleDevices,omitempty"`
	// NCCLTopology mounts a file that describes exactly them for NCCL, and sets NCCL_TOPO_FILE.
	NCCLTopology bool `json:"ncclTopology,omitempty"`
}

// Strategy is how the processes on a device share it.
type Strategy string

const (
	// StrategyTimeSlicing has them take turns. Nothing limits the memory of one.
	StrategyTimeSlicing Strategy = "TimeSlicing"
	// StrategyMPS has an MPS daemon run them at once, each within limits.
	StrategyMPS Strategy = "MPS"
)

// Interval is how long a process computes before it is another's turn.
type Interval string

// The intervals that nvidia-smi compute-policy knows.
const (
	IntervalDefault Interval = "Default"
	IntervalShort   Interval = "Short"
	IntervalMedium  Interval = "Medium"
	IntervalLong    Interval = "Long"
)

// Intervals are all of them, in the order of the driver's numbers, 0 (default) to 3 (long).
var Intervals = []Interval{IntervalDefault, IntervalShort, IntervalMedium, IntervalLong}

// Number is the driver's number of an interval, that of the default for any other text.
func (i Interval) Number() int { return max(0, slices.Index(Intervals, i)) }

// Sharing says how the processes on a device share it. Exactly the configuration of the strategy may be given.
type Sharing struct {
	// Strategy is required.
	Strategy Strategy `json:"strategy"`
	// TimeSlicing defaults to {interval: Default}.
	TimeSlicing *TimeSlicingConfig `json:"timeSlicingConfig,omitempty"`
	// MPS defaults to no limits beyond those of the share.
	MPS *MPSConfig `json:"mpsConfig,omitempty"`
}

// TimeSlicingConfig configures time-slicing. A MIG device takes turns too, and has no interval to set.
type TimeSlicingConfig struct {
	// Interval defaults to Default.
	Interval Interval `json:"interval,omitempty"`
}

// MPSConfig configures the MPS daemon of a device. Where the claim has a share of the device, the share's limits hold too,
// and the smaller one counts.
type MPSConfig struct {
	// DefaultActiveThreadPercentage is the part of the SMs that each process may use, in percent. 0 and none: all.
	DefaultActiveThreadPercentage *int `json:"defaultActiveThreadPercentage,omitempty"`
	// DefaultPinnedDeviceMemoryLimit is the memory that each process may allocate. None: all of the share.
	DefaultPinnedDeviceMemoryLimit *resource.Quantity `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	// DefaultPerDevicePinnedMemoryLimit is the same for single devices, by UUID or by position in the claim.
	DefaultPerDevicePinnedMemoryLimit map[string]resource.Quantity `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser says whether processes of different users compute at once. None: where the driver can.
	MultiUser *bool `json:"multiUser,omitempty"`
}

// Field describes a parameter for the reference documentation.
type Field struct {
	// Path is below the object, as sharing.strategy.
	Path, Type, Default, Meaning string
}

// Fields are those of both kinds, in the order of the documentation.
var Fields = []Field{
	{"sharing", "object", "none", "How the processes on the device share it. Without it a share follows the node's setting, and a device that a claim has to itself is left alone."},
	{"sharing.strategy", "string", "required", "TimeSlicing: processes take turns, and nothing limits the memory of one. MPS: an MPS daemon runs them at once, each within limits."},
	{"sharing.timeSlicingConfig", "object", "{interval: Default}", "For TimeSlicing only."},
	{"sharing.timeSlicingConfig.interval", "string", "Default", "How long a process computes before it is another's turn: Default, Short, Medium or Long. It is the GPU's: sharers must agree. A MIG device has none to set."},
	{"sharing.mpsConfig", "object", "{}", "For MPS only. Where the claim has a share of the device, the share's limits hold too, and the smaller one counts."},
	{"sharing.mpsConfig.defaultActiveThreadPercentage", "int, 0 to 100", "all, or the share's compute", "The part of the SMs that each process may use, in percent. 0 is all."},
	{"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "quantity, at least 1Mi", "all, or the share's memory", "The memory that each process may allocate."},
	{"sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit", "map of quantities", "none", "The same for single devices, by UUID or by position in the claim (0, 1, …); it goes before the limit for all."},
	{"sharing.mpsConfig.multiUser", "bool", "where the driver can", "Whether processes of different users compute at once. true is refused where the driver's MPS cannot; with false they wait for each other."},
	{"topology", "object, in " + KindGPUConfig + " only", "none", "What containers are told of how the GPUs of the request are wired. For whole GPUs and NVLink groups, in one request of a claim."},
	{"topology.cudaVisibleDevices", "bool", "false", "Sets CUDA_VISIBLE_DEVICES to the request's GPUs by UUID, those that NVLink connects best side by side. CUDA then uses no GPU of another request in the same container."},
	{"topology.ncclTopology", "bool", "false", "Mounts a file that describes exactly the request's GPUs for NCCL (PCIe bridges, NUMA nodes, NVLinks) and sets NCCL_TOPO_FILE to it."},
}
