// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

// Utilization is in percent of the time: that in which a kernel ran, and that in which memory was read or written.
type Utilization struct{ GPU, Memory int }

// VideoUtilization is in percent of the time.
type VideoUtilization struct{ Encoder, Decoder int }

// ClockDomain is a clock (nvmlClockType_t).
type ClockDomain int

// The clocks of a GPU.
const (
	ClockGraphics ClockDomain = 0
	ClockSM       ClockDomain = 1
	ClockMemory   ClockDomain = 2
	ClockVideo    ClockDomain = 3
)

// Counters are measurements of the board. All but MemoryTemperature count since the driver was loaded. Those of PCIe can
// wrap.
type Counters struct {
	// EnergyMJ is in millijoules.
	EnergyMJ int64
	// MemoryTemperature is in degrees Celsius.
	MemoryTemperature int64
	// These are in bytes.
	PCIeSent, PCIeReceived, NVLinkSent, NVLinkReceived int64
	PCIeReplays                                        int64
	// These are nanoseconds with reduced clocks, by reason.
	PowerCap, SyncBoost, SoftwareThermal, HardwareThermal, PowerBrake int64
}

// ProcessMemory is the memory of a process on a GPU or an instance.
type ProcessMemory struct {
	Process
	// Bytes is NotReported if the driver does not know it.
	Bytes int64
}

// ProcessUtilization is the percentage of time in which a process's kernels ran.
type ProcessUtilization struct {
	PID uint32
	// Time is in microseconds.
	Time uint64
	SM   int
}

// PerformanceSample is the state of performance counters. It belongs to its session.
type PerformanceSample interface {
	// Since returns averages since an earlier sample of the same GPU or instance, at least 100 ms before.
	Since(earlier PerformanceSample) (Performance, error)
	// Free releases the sample. A second Free does nothing.
	Free()
}

// Performance holds ratios from 0 to 1, of a GPU or of a GPU instance. A ratio that the driver does not report is
// NotReported.
type Performance struct {
	// Graphics is the time in which any kernel ran; SM, Tensor and DRAM are the parts of multiprocessors, of tensor cores and
	// of memory bandwidth in use.
	Graphics, SM, Tensor, DRAM float64
}
