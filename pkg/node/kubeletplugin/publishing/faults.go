// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"errors"
	"slices"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// cause returns the cause of a device's unhealthy state, which its GPU has, such as an XID. A group has the cause of
// the node's GPUs with the state, if they have the same one.
func (n *Node) cause(device, state string) string {
	d, err := gpu.ParseName(device)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.snapshot == nil {
		return generalCause(state)
	}
	var causes []string
	for _, g := range n.snapshot.GPUs {
		if err != nil || d.Kind != gpu.KindGroup && g.PCIAddress != d.PCIAddress || len(g.Faults) == 0 {
			continue
		}
		if f := g.Faults[0]; f.State == state && !slices.Contains(causes, f.Cause) {
			causes = append(causes, f.Cause)
		}
	}
	if len(causes) == 1 {
		return causes[0]
	}
	return generalCause(state)
}

// generalCause returns the usual cause of a state of pkg/gpu/health.
func generalCause(state string) string {
	s, _ := health.Lookup(state)
	return s.Cause
}

// advise reports new advice about GPUs, and GPUs that are newly unmonitored. The caller holds n.mu.
func (n *Node) advise(s gpu.Snapshot) {
	advised := map[string]bool{}
	for _, g := range s.GPUs {
		advice := g.Advice
		if g.Unmonitored != "" {
			advice = append(slices.Clone(advice),
				gpu.Fault{Cause: "faults of the GPU cannot be seen: " + g.Unmonitored})
		}
		for _, a := range advice {
			key := g.UUID + " " + a.State
			advised[key] = true
			if n.advised[key] {
				continue
			}
			known, _ := health.Advised(a.State)
			n.o.Reports.Report(&claimerror.Error{
				Reason:  claimerror.DeviceDegraded,
				Attempt: "health check",
				Device:  gpu.NameOf(g.PCIAddress),
				Cause:   errors.New(a.Cause),
				Remedy:  known.RemedyFor(g.PCIAddress),
			})
		}
	}
	n.advised = advised
}
