// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// FaultNote begins notes about known faults of the cluster's scheduler.
const FaultNote = "the scheduler of Kubernetes "

// judgedBy says by which versions and objects the answer is judged, and which known faults the cluster's scheduler has.
// Its decisions can differ from the answer because of them.
func (a *Answer) judgedBy(c *Cluster, s Subject) {
	version, err := schedulerfault.Parse(c.ServerVersion)
	a.JudgedBy = schedulerfault.JudgedBy(version)
	switch {
	case c.ServerVersionError != nil:
		a.note("the API server's version could not be read (%v), so known faults of its scheduler were not considered",
			c.ServerVersionError)
	case c.ServerVersion == "": // No cluster.
	case err != nil:
		a.note("%v, so known faults of the scheduler were not considered", err)
	default:
		for _, f := range schedulerfault.Of(version, served(c.Slices)) {
			a.note(FaultNote+"%s can decide otherwise: %s; to end that, %s", version, f.Text, f.Remedy())
		}
	}
	if s.Pod == nil && c.Failed(read.ClaimPods) {
		a.note("pods could not be read, so the answer is for a claim without its pod")
	}
	if c.Nodes == nil {
		a.note("nodes could not be read, so their taints, cordons and labels are not considered")
	}
	if c.Failed(read.DeviceTaintRules) {
		a.note("DeviceTaintRules could not be read, so their taints are not considered")
	}
}

func (a *Answer) note(format string, args ...any) {
	a.Notes = append(a.Notes, fmt.Sprintf(format, args...))
}

// served are the features that published slices have.
func served(all []*pool.Slice) (f schedulerfault.Features) {
	for _, s := range all {
		f.Counters = f.Counters || len(s.Shape.Spec.SharedCounters) > 0
		for _, d := range s.Shape.Spec.Devices {
			f.Shares = f.Shares || d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
		}
	}
	return f
}
