// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// GroupVersion is the apiVersion of every parameter kind.
const GroupVersion = "resource.nvidia.com/v1beta1"

// The kinds of parameters.
const (
	KindGPUConfig       = "GpuConfig"
	KindMIGDeviceConfig = "MigDeviceConfig"
)

// Config is a parameter object of either kind: parameters of a GPU, whole or shared, or of a MIG partition. Empty
// fields have defaults.
type Config struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Sharing    *Sharing `json:"sharing,omitempty"`
	// Topology is valid only in KindGPUConfig: for whole GPUs and groups of GPUs.
	Topology *Topology `json:"topology,omitempty"`
}

// Topology describes the interconnect of the request's GPUs to containers.
type Topology struct {
	// CUDAVisibleDevices sets CUDA_VISIBLE_DEVICES to the request's GPUs, with the best connected GPUs adjacent.
	CUDAVisibleDevices bool `json:"cudaVisibleDevices,omitempty"`
	// NCCLTopology mounts a topology file for NCCL with these GPUs only, and sets NCCL_TOPO_FILE.
	NCCLTopology bool `json:"ncclTopology,omitempty"`
}

// Strategy selects how processes share a device.
type Strategy string

const (
	// StrategyTimeSlicing makes processes take turns. It limits no process's memory.
	StrategyTimeSlicing Strategy = "TimeSlicing"
	// StrategyMPS runs processes at the same time through an MPS daemon, each within its limits.
	StrategyMPS Strategy = "MPS"
)

// Interval is the length of a process's time slice.
type Interval string

// The intervals of nvidia-smi compute-policy.
const (
	IntervalDefault Interval = "Default"
	IntervalShort   Interval = "Short"
	IntervalMedium  Interval = "Medium"
	IntervalLong    Interval = "Long"
)

// Intervals lists the intervals in the order of the driver's numbers, 0 (default) to 3 (long).
var Intervals = []Interval{IntervalDefault, IntervalShort, IntervalMedium, IntervalLong}

// Number returns the driver's number of an interval. An unknown text gets the default's number.
func (i Interval) Number() int { return max(0, slices.Index(Intervals, i)) }

// Sharing configures how processes share a device. Only the configuration of the selected strategy may be set.
type Sharing struct {
	// Strategy is required.
	Strategy Strategy `json:"strategy"`
	// TimeSlicing defaults to {interval: Default}.
	TimeSlicing *TimeSlicingConfig `json:"timeSlicingConfig,omitempty"`
	// MPS defaults to the share's limits only.
	MPS *MPSConfig `json:"mpsConfig,omitempty"`
}

// TimeSlicingConfig configures time-slicing. Processes on a MIG device take turns as well, but its interval cannot be
// set.
type TimeSlicingConfig struct {
	// Interval defaults to Default.
	Interval Interval `json:"interval,omitempty"`
}

// Quantity is an amount of bytes. Its exponent has at most two digits: with billions of digits, parsing and comparing
// it would use up the process's memory.
type Quantity struct{ resource.Quantity }

// MPSConfig configures the MPS daemon of a device. If the claim has a share of the device, the smaller of both limits
// applies.
type MPSConfig struct {
	// DefaultActiveThreadPercentage limits the SMs of each process, in percent. 0 or unset means all SMs.
	DefaultActiveThreadPercentage *int `json:"defaultActiveThreadPercentage,omitempty"`
	// DefaultPinnedDeviceMemoryLimit limits the memory of each process. Unset means the share's memory.
	DefaultPinnedDeviceMemoryLimit *Quantity `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	// DefaultPerDevicePinnedMemoryLimit is the same limit for single devices, by UUID or by position in the claim.
	DefaultPerDevicePinnedMemoryLimit map[string]Quantity `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser lets processes of different users compute at the same time. Unset means yes if the driver supports
	// it.
	MultiUser *bool `json:"multiUser,omitempty"`
}
