// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

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
