// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"

	"gpu-dra-driver/pkg/gpu"
)

// The names of advice. The GPU works and is not tainted.
const (
	RemapPending  = "remap-pending"
	ManyErrors    = "many-ecc-errors"
	RisingErrors  = "rising-ecc-errors"
	SlowClocks    = "slowdown"
	FewLanes      = "pcie-width"
	NoPersistence = "no-persistence"
	slowLimit     = 5 * time.Minute
	errorInterval = time.Hour
	// risingErrors is the number of corrected errors in errorInterval that causes advice.
	risingErrors = 10
	// failedPolls is the number of failed queries in a row after which a GPU is unmonitored.
	failedPolls = 4
)

// Advices are all advice. They are States without a taint. docs/reference/health.md is generated from it.
var Advices = []State{
	{Name: RemapPending, Cause: "a faulty row of the GPU's memory is replaced at the next reset",
		Remedy:   "when no pod uses the GPU, run on the node: nvidia-smi -r -i ADDRESS",
		Commands: []string{"nvidia-smi -r -i ADDRESS"}, Usable: true},
	{Name: ManyErrors, Cause: "the driver reports a high rate of corrected memory errors (XID 92)",
		Remedy:   "watch the GPU (nvidia-smi -q -d ECC -i ADDRESS); ask the vendor for a replacement if it continues",
		Commands: []string{"nvidia-smi -q -d ECC -i ADDRESS"}, Usable: true},
	{Name: RisingErrors, Cause: "the GPU corrected 10 or more memory errors within an hour",
		Remedy:   "watch the GPU (nvidia-smi -q -d ECC -i ADDRESS); run NVIDIA's field diagnostic if it continues",
		Commands: []string{"nvidia-smi -q -d ECC -i ADDRESS"}, Usable: true},
	{
		Name:  SlowClocks,
		Cause: "heat or power has reduced the GPU's clocks for more than five minutes",
		Remedy: "check the cooling and the power supply of the node (nvidia-smi -q -d " +
			"PERFORMANCE,POWER,TEMPERATURE -i ADDRESS)",
		Commands: []string{"nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i ADDRESS"},
		Usable:   true,
	},
	{Name: FewLanes, Cause: "the busy GPU uses fewer PCIe lanes than it has",
		Remedy:   "check the board's seat and the riser (nvidia-smi -q -i ADDRESS shows the link)",
		Commands: []string{"nvidia-smi -q -i ADDRESS"}, Usable: true},
	{Name: NoPersistence,
		Cause:    "persistence mode is off: the driver shuts the idle GPU down, and each scan starts it again",
		Remedy:   "run nvidia-persistenced on the node, or nvidia-smi -pm 1 -i ADDRESS",
		Commands: []string{"nvidia-smi -pm 1 -i ADDRESS"}, Usable: true},
}

// adviser holds the memory behind advice. It is lost with the plugin's restart.
type adviser struct {
	last Reading
	// slow is the time of the first poll in a row with reduced clocks.
	slow time.Time
	// errors counted corrected errors at the time since. It is negative if their number was unknown.
	errors int64
	since  time.Time
	// rose, many and lanes are the times of the last rise of errors, of the first poll after the last XID 92, and of
	// the last work with few lanes.
	rose, many, lanes time.Time
	xid92             bool
}

func (a adviser) poll(r Reading) adviser {
	a.last = r
	switch {
	case !r.Slow:
		a.slow = time.Time{}
	case a.slow.IsZero():
		a.slow = r.At
	}
	if a.errors < 0 || a.since.IsZero() || r.Corrected < a.errors || r.At.Sub(a.since) > errorInterval {
		a.errors, a.since = r.Corrected, r.At
	}
	if r.Corrected-a.errors >= risingErrors {
		a.errors, a.since, a.rose = r.Corrected, r.At, r.At
	}
	if a.xid92 {
		a.xid92, a.many = false, r.At
	}
	if r.Busy && r.Width < r.MaxWidth {
		a.lanes = r.At
	}
	return a
}

// Advice returns the present advice, in the order of Advices.
func (g GPU) Advice() (out []gpu.Fault) {
	a := g.adviser
	now := a.last.At
	recent := func(t time.Time) bool { return !t.IsZero() && now.Sub(t) < errorInterval }
	for n, present := range []bool{
		a.last.RemapPending, recent(a.many), recent(a.rose), !a.slow.IsZero() && now.Sub(a.slow) > slowLimit,
		recent(a.lanes), a.last.NoPersistence,
	} {
		if present {
			out = append(out, gpu.Fault{State: Advices[n].Name, Cause: Advices[n].Cause})
		}
	}
	return out
}

// Failed applies a failed query of the GPU's health. It changes no fault.
func (g GPU) Failed() GPU {
	g.failed++
	return g
}

// Refused applies whether the driver refuses to deliver the GPU's XIDs.
func (g GPU) Refused(refused bool) GPU {
	g.refused = refused
	return g
}

// Unmonitored returns the reason why faults cannot be seen, or "".
func (g GPU) Unmonitored() string {
	if g.failed >= failedPolls {
		return "the driver does not answer queries of its health"
	}
	if g.refused && g.polled && !g.decides {
		return "the driver reports neither recovery actions nor XIDs"
	}
	return ""
}

// Last returns the last answer of the driver.
func (g GPU) Last() (r Reading, ok bool) { return g.adviser.last, g.polled }

// Advised returns the advice of a name.
func Advised(name string) (s State, ok bool) {
	n := slices.IndexFunc(Advices, func(s State) bool { return s.Name == name })
	if n < 0 {
		return State{}, false
	}
	return Advices[n], true
}
