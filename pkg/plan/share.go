// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/sharing"
)

// Share is the part of a device that a claim has beside other claims. The zero Share is a device to itself.
type Share struct {
	// MemoryBytes is what the scheduler charged, of TotalBytes that the device has.
	MemoryBytes uint64 `json:"memoryBytes,omitempty"`
	TotalBytes  uint64 `json:"ofBytes,omitempty"`
	// Compute is the part of the SMs that is reserved, in percent; 0 reserves none.
	Compute int `json:"compute,omitempty"`
	// MaxShares is how many claims can have a share of the device at once.
	MaxShares int `json:"most,omitempty"`
	// UsableBytes is what of MemoryBytes the claim can use: what the driver keeps of the device is taken from each share
	// in proportion.
	UsableBytes uint64 `json:"usableBytes,omitempty"`
}

// Sharing is how the processes on a device get along. The zero Sharing leaves it to the GPU.
type Sharing struct {
	Strategy v1beta1.Strategy `json:"strategy,omitempty"`
	// Interval is the time slice, 0 (default) to 3 (long), where Timed says that the claim named one.
	Interval int  `json:"interval,omitempty"`
	Timed    bool `json:"timed,omitempty"`
	// MemoryLimit is what each process may allocate, in bytes. Nil is a device to itself: a share has a limit.
	MemoryLimit *uint64 `json:"memoryLimit,omitempty"`
	// ActiveThreadPercentage is the part of the SMs that each process may use, in percent; 0: all.
	ActiveThreadPercentage int `json:"threads,omitempty"`
	// MultiUser says whether processes of different users work at once.
	MultiUser MultiUser `json:"users,omitempty"`
}

// MultiUser says whether an MPS daemon serves several users at once.
type MultiUser string

const (
	// MultiUserUnset has them work at once where the driver can.
	MultiUserUnset MultiUser = ""
	// MultiUserOn insists on it.
	MultiUserOn MultiUser = "many"
	// MultiUserOff has the processes of one user wait for those of another.
	MultiUserOff MultiUser = "one"
)

// Partial says that other claims may have the rest of the device.
func (d Device) Partial() bool { return d.Share != Share{} }

// MPS says that an MPS daemon stands between the claim's processes and the device.
func (d Device) MPS() bool { return d.Sharing.Strategy == v1beta1.StrategyMPS }

// Shares says whether two devices are shares of one.
func (d Device) Shares(o Device) bool {
	return d.Name == o.Name && !d.Admin && !o.Admin && d.Partial() && o.Partial()
}

// Disagrees says why a share cannot be beside another that was there first, and is empty where it can.
func (d Device) Disagrees(first Device) string {
	a, b := d.Sharing, first.Sharing
	switch {
	case a.Strategy != b.Strategy:
		return fmt.Sprintf("shares it by %s, this claim wants %s", b.Strategy, a.Strategy)
	case a.Timed && b.Timed && a.Interval != b.Interval:
		return fmt.Sprintf("shares it with the time slice %s, this claim wants %s", v1beta1.Intervals[b.Interval&3], v1beta1.Intervals[a.Interval&3])
	case d.MPS() && a.MultiUser != b.MultiUser:
		return fmt.Sprintf("shares it with mpsConfig.multiUser %s, this claim wants %s", b.MultiUser.text(), a.MultiUser.text())
	}
	return ""
}

func (m MultiUser) text() string {
	switch m {
	case MultiUserOn:
		return "true"
	case MultiUserOff:
		return "false"
	}
	return "unset"
}

// Use is how much of one device its shares take together.
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

// Excess says what of a device is overdrawn, and is empty where nothing is. It says for the last line of defence what
// the scheduler sees to in the first place.
func (u Use) Excess(s Share) string {
	switch {
	case u.MemoryBytes > s.TotalBytes:
		return fmt.Sprintf("its shares take %d MiB of memory, and it has %d", u.MemoryBytes>>20, s.TotalBytes>>20)
	case u.Compute > 100:
		return fmt.Sprintf("its shares reserve %d %% of the SMs", u.Compute)
	case s.MaxShares > 0 && u.Count > s.MaxShares:
		return fmt.Sprintf("it has %d shares, and room for %d", u.Count, s.MaxShares)
	}
	return ""
}

// Work is a step with the plans around it: the argument of an executor's methods.
type Work struct {
	Step
	// Devices are the plan's. Only the step's may be written to.
	Devices []Device
	// OnGPU are the devices of other claims whose effects of this boot may be on the GPU, in order of the claims' UIDs.
	OnGPU []CoTenant
}

// CoTenant is a device of another claim on the same GPU.
type CoTenant struct {
	Claim  Claim
	Device Device
	// Committed says that all effects of the claim exist, not only some.
	Committed bool
}

func (w Work) Target() *Device { return &w.Devices[w.Device] }

// CoTenants are the other claims' shares of the step's device.
func (w Work) CoTenants() []CoTenant {
	return slices.DeleteFunc(slices.Clone(w.OnGPU), func(t CoTenant) bool { return !t.Device.Shares(*w.Target()) })
}

// Sharers are all shares of the step's device, those of the plan and those of other claims.
func (w Work) Sharers() (out []Device) {
	for i := range w.Devices {
		// Those of other GPUs may be written to meanwhile.
		if w.Devices[i].Name == w.Target().Name && w.Devices[i].Shares(*w.Target()) {
			out = append(out, w.Devices[i])
		}
	}
	for _, t := range w.CoTenants() {
		out = append(out, t.Device)
	}
	return out
}

// usable takes what the driver keeps of a GPU from a share, in proportion, in whole steps, and leaves one at least.
func usable(share, total, reserved uint64) uint64 {
	if total == 0 || reserved >= total || share > total {
		return share
	}
	// No GPU has 2^50 bytes, so mebibytes multiply without overflow.
	return max(share/sharing.Step*((total-reserved)/sharing.Step)/(total/sharing.Step), 1) * sharing.Step
}

// memory is what a device of the GPU has, and what the driver keeps of it.
func memory(g gpu.GPU, p Partition) (total, reserved uint64) {
	if p.Profile != "" {
		return p.MemoryBytes, 0
	}
	return g.MemoryBytes, g.ReservedBytes
}
