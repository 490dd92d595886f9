// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// Share is a claim's part of a shared device. The zero Share means the whole device.
type Share struct {
	// MemoryBytes is the scheduler's charge; DeviceMemoryBytes is the device's memory.
	MemoryBytes       uint64 `json:"memoryBytes,omitempty"`
	DeviceMemoryBytes uint64 `json:"deviceMemoryBytes,omitempty"`
	// Compute is the reserved part of the SMs in percent; 0 reserves none.
	Compute int `json:"compute,omitempty"`
	// MaxShares is the maximum number of concurrent shares of the device.
	MaxShares int `json:"maxShares,omitempty"`
	// UsableBytes is MemoryBytes without its part of the driver's reserve, which all shares bear in proportion.
	UsableBytes uint64 `json:"usableBytes,omitempty"`
}

// Sharing configures the processes on a device. The zero Sharing keeps the GPU's settings.
type Sharing struct {
	Strategy v1beta1.Strategy `json:"strategy,omitempty"`
	// Interval is the time slice, 0 (default) to 3 (long). It is valid if Timed is set.
	Interval int  `json:"interval,omitempty"`
	Timed    bool `json:"timed,omitempty"`
	// MemoryLimit is each process's limit, in bytes. Nil means no limit: for a device without shares, and for time
	// slices.
	MemoryLimit *uint64 `json:"memoryLimit,omitempty"`
	// ContainerLimit is the limit of all processes of a container together, in bytes; 0 means no limit, as with drivers
	// before CUDA 13.4.
	ContainerLimit uint64 `json:"containerLimit,omitempty"`
	// ActiveThreadPercentage is each process's limit of the SMs in percent; 0 means no limit.
	ActiveThreadPercentage int `json:"activeThreadPercentage,omitempty"`
	// MultiUser says whether an MPS daemon must serve several users concurrently, or must not. Nil: if the driver can.
	MultiUser *bool `json:"multiUser,omitempty"`
	// OwnSharedMemory means that containers keep their own /dev/shm, because the driver's MPS has no files there.
	OwnSharedMemory bool `json:"ownSharedMemory,omitempty"`
}

// Partial reports whether other claims can have the rest of the device.
func (d Device) Partial() bool { return d.Share != Share{} }

// Shares reports whether two devices are shares of one.
func (d Device) Shares(o Device) bool {
	return d.Name == o.Name && !d.Admin && !o.Admin && d.Partial() && o.Partial()
}

// EqualShare returns the ID of the i-th device's share if the claim has another share of the device with the same limit
// of containers, or "".
func (p Plan) EqualShare(i int) string {
	d := p.Devices[i]
	for n, o := range p.Devices {
		if n != i && d.Shares(o) && d.Sharing.ContainerLimit == o.Sharing.ContainerLimit {
			return d.ShareID
		}
	}
	return ""
}

// Disagrees returns the reason why a share cannot join an earlier one, or "".
func (d Device) Disagrees(first Device) string {
	a, b := d.Sharing, first.Sharing
	switch {
	case a.Strategy != b.Strategy:
		return fmt.Sprintf("shares it by %s, this claim wants %s", b.Strategy, a.Strategy)
	case a.Timed && b.Timed && a.Interval != b.Interval:
		return fmt.Sprintf("shares it with the time slice %s, this claim wants %s", v1beta1.Intervals[b.Interval&3],
			v1beta1.Intervals[a.Interval&3])
	case !ptr.Equal(a.MultiUser, b.MultiUser):
		text := func(b *bool) string {
			if b == nil {
				return "unset"
			}
			return strconv.FormatBool(*b)
		}
		return fmt.Sprintf("shares it with mpsConfig.multiUser %s, this claim wants %s", text(b.MultiUser),
			text(a.MultiUser))
	}
	return ""
}

// Use is the sum of the shares of one device.
type Use struct {
	MemoryBytes uint64
	Compute     int
	Count       int
}

func (u *Use) Add(s Share) {
	u.MemoryBytes += s.MemoryBytes
	u.Compute += s.Compute
	u.Count++
}

// Excess describes the resource that shares overdraw, or returns "". The scheduler already checks it; this is the last
// line of defence.
func (u Use) Excess(s Share) string {
	switch {
	case u.MemoryBytes > s.DeviceMemoryBytes:
		return fmt.Sprintf("its shares take %d MiB of memory, and it has %d", u.MemoryBytes>>20,
			s.DeviceMemoryBytes>>20)
	case u.Compute > 100:
		return fmt.Sprintf("its shares reserve %d %% of the SMs", u.Compute)
	case s.MaxShares > 0 && u.Count > s.MaxShares:
		return fmt.Sprintf("it has %d shares, and room for %d", u.Count, s.MaxShares)
	}
	return ""
}

// Work is a step with its device's context, the argument of an executor's methods.
type Work struct {
	Step
	// Devices are the plan's devices. Executors may only change the step's one.
	Devices []Device
	// OnGPU are the devices of other claims that may have effects of this boot on the GPU, by claim UID.
	OnGPU []CoTenant
	// Unknown are the UIDs of claims that may have effects on the GPU too, but neither record nor CDI spec shows which.
	Unknown []string
}

// CoTenant is a device of another claim on the same GPU.
type CoTenant struct {
	Claim  Claim
	Device Device
	// Committed means that all effects of the claim exist.
	Committed bool
}

func (w Work) Target() *Device { return &w.Devices[w.Device] }

// CoTenants returns the other claims' shares of the step's device.
func (w Work) CoTenants() []CoTenant {
	return slices.DeleteFunc(slices.Clone(w.OnGPU), func(t CoTenant) bool { return !t.Device.Shares(*w.Target()) })
}

// MayBeShared reports whether a claim of unknown devices may have a share of the step's device.
func (w Work) MayBeShared() bool {
	return len(w.Unknown) > 0 && w.Target().Partial() && !w.Target().Admin
}

// Sharers returns all shares of the step's device, from the plan and from other claims.
func (w Work) Sharers() (out []Device) {
	for i := range w.Devices {
		// Devices on other GPUs may change concurrently.
		if w.Devices[i].Name == w.Target().Name && w.Devices[i].Shares(*w.Target()) {
			out = append(out, w.Devices[i])
		}
	}
	for _, t := range w.CoTenants() {
		out = append(out, t.Device)
	}
	return out
}

// usable returns a share without its part of the driver's reserve, in whole steps, and at least one step.
func usable(share, total, reserved uint64) uint64 {
	if total == 0 || reserved >= total || share > total {
		return share
	}
	// No GPU has 2^50 bytes, so mebibytes multiply without overflow.
	return max(share/sharing.Step*((total-reserved)/sharing.Step)/(total/sharing.Step), 1) * sharing.Step
}

// memory returns the memory of a device of the GPU, and the driver's reserve in it.
func memory(g gpu.GPU, p Partition) (total, reserved uint64) {
	if p.Profile != "" {
		return p.MemoryBytes, 0
	}
	return g.MemoryBytes, g.ReservedBytes
}
