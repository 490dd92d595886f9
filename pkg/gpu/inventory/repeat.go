// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"reflect"
	"slices"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
)

// One odd answer of NVML would withdraw a GPU, or an attribute by which classes select. So a GPU that is missing or
// reads differently keeps its last state for one scan, each GPU by itself. The next scan, which follows at the next
// poll, counts. A GPU that the kernel does not list any more is gone at once.

// repeats reports whether a scan must be repeated before it is the first one: a GPU could not be read.
func (r result) repeats() bool {
	unread := func(p gpu.Problem) bool { return p.Index >= 0 }
	return r.err == nil && (slices.ContainsFunc(r.snapshot.Problems, unread) ||
		slices.ContainsFunc(r.snapshot.GPUs, func(g gpu.GPU) bool { return g.MIG.Fault != "" }))
}

// keep replaces the answers about GPUs that differ from the last scan, unless that scan already differed.
func (r *result) keep(last result, kernel nvml.Kernel) {
	s := &r.snapshot
	if s.Machine = cmp.Or(s.Machine, last.snapshot.Machine); s.Driver.Version == last.snapshot.Driver.Version {
		s.Driver.CUDA = cmp.Or(s.Driver.CUDA, last.snapshot.Driver.CUDA)
	}
	r.doubted = map[string]bool{}
	for _, was := range last.snapshot.GPUs {
		at := slices.IndexFunc(s.GPUs, func(g gpu.GPU) bool { return g.PCIAddress == was.PCIAddress })
		kept := was
		if at >= 0 {
			kept = withFactsOf(was, s.GPUs[at])
		}
		if at >= 0 && reflect.DeepEqual(kept, s.GPUs[at]) || last.doubted[was.PCIAddress] ||
			!kernel.HasGPU(was.PCIAddress) {
			continue
		}
		r.doubted[was.PCIAddress] = true
		if at >= 0 {
			s.GPUs[at] = kept
			continue
		}
		s.GPUs = append(s.GPUs, kept)
		s.Problems = slices.DeleteFunc(s.Problems, func(p gpu.Problem) bool {
			return p.PCIAddress == was.PCIAddress || p.PCIAddress == "" && p.Index == was.Index
		})
		if len(s.Problems) == 0 {
			s.Problems = nil
		}
	}
	slices.SortFunc(s.GPUs, byAddress)
}

// withFactsOf returns a GPU's last state with the new values of fields that change while the GPU works.
func withFactsOf(was, now gpu.GPU) gpu.GPU {
	out := was
	out.Index, out.Minor, out.Silent = now.Index, now.Minor, now.Silent
	out.Faults, out.Advice, out.Unmonitored = now.Faults, now.Advice, now.Unmonitored
	if was.MIG.Capable && now.MIG.Capable && now.MIG.Fault == "" {
		out.MIG = now.MIG
		out.MIG.Switchable = was.MIG.Switchable
	}
	return out
}
