// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// amounts are quantities of all suffixes: negative, zero, tiny, usual and huge.
func amounts() (out []string) {
	for _, suffix := range strings.Split(",n,u,m,k,M,G,T,P,E,Ki,Mi,Gi,Ti,Pi,Ei,e3,e-3,e30", ",") {
		for _, n := range []string{"0", "1", "1.5", "2", "7", "15.9", "16", "81558", "999999", "9223372036854775807", "99999999999999999999"} {
			out = append(out, n+suffix, "-"+n+suffix)
		}
	}
	return out
}

// TestBuild_AnyMemoryRequested_LimitsProcessToCharge follows a request through scheduler and plan to the two limits of a
// process, its environment's and its daemon's.
func TestBuild_AnyMemoryRequested_LimitsProcessToCharge(t *testing.T) {
	small := mpsBoards(1, gpu.MIG{})
	small.GPUs[0].MemoryBytes, small.GPUs[0].ReservedBytes = 2<<30, 448<<20
	kept := mpsBoards(1, gpu.MIG{})
	kept.GPUs[0].MemoryBytes, kept.GPUs[0].ReservedBytes = 2<<30, 2040<<20
	h100 := mpsBoards(1, layouttest.H100())
	h100.GPUs[0].ReservedBytes = 454 << 20
	for name, c := range map[string]struct {
		node   gpu.Snapshot
		class  string
		policy sharing.Policy
	}{
		"an H100":              {h100, "gpu.nvidia.com", sharing.Policy{}},
		"a small GPU":          {small, "gpu.nvidia.com", sharing.Policy{}},
		"one that is not free": {kept, "gpu.nvidia.com", sharing.Policy{}},
		"a partition":          {h100, "mig.nvidia.com", sharing.Policy{}},
		"a thousandth of one":  {h100, "gpu.nvidia.com", sharing.Policy{Strategy: v1beta1.StrategyMPS, Replicas: 1000}},
		"a thousandth of less": {small, "gpu.nvidia.com", sharing.Policy{Strategy: v1beta1.StrategyMPS, Replicas: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, c.node, withSharing(sharingtest.Source{
				OfferOf: func(g gpu.GPU, profile string, _ v1beta1.Strategy) (sharing.Offer, bool) {
					return sharing.OfferOf(c.policy, g, profile, true)
				},
			}))
			node := plan.Node{
				Driver: driver, Pool: s.slices[0].Spec.Pool.Name, Snapshot: c.node,
				Policy: func(gpu.GPU, string) sharing.Policy { return c.policy },
			}
			shares := 0
			for _, memory := range append(amounts(), "") {
				claim := s.claim(c.class, 1)
				if memory != "" {
					requesting(claim, "memory", memory)
				}
				results, err := s.results(claim)
				if err != nil || len(results) == 0 {
					continue // Nothing has so much, or it is not an amount to the scheduler.
				}
				claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
				p, err := plan.Make(claim, node)
				if err == nil {
					err = p.Refused
				}
				if err != nil {
					t.Errorf("%q was allocated and is refused: %v", memory, err)
					continue
				}
				if p.Devices[0].Partial() {
					shares++
					checkLimits(t, p, results[0].ConsumedCapacity["memory"])
				}
			}
			if shares < 20 {
				t.Errorf("%d shares were given, which proves little", shares)
			}
		})
	}
}

// checkLimits checks that both limits of a plan's device are there, and at most what was charged.
func checkLimits(t *testing.T, p plan.Plan, charged resource.Quantity) {
	t.Helper()
	var mebibytes int64
	edits := cdi.DeviceEdits(specs.ContainerEdits{}, plan.Claim{}, p.Devices[0], cdi.Paths{MPS: "/mps"})
	for _, env := range edits.Env {
		_, _ = fmt.Sscanf(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", &mebibytes)
	}
	if mebibytes < 1 || charged.CmpInt64(mebibytes<<20) < 0 {
		t.Errorf("%s are charged, and a process is limited to %d MiB by %q", charged.String(), mebibytes, edits.Env)
	}
	step := p.Steps[len(p.Steps)-1]
	d := mps.Daemon(plan.Work{Step: step, Devices: p.Devices})
	if d.MemoryLimit == nil || *d.MemoryLimit < 1<<20 || charged.CmpInt64(int64(*d.MemoryLimit)) < 0 {
		t.Errorf("%s are charged, and the daemon limits to %v", charged.String(), d.MemoryLimit)
	}
}
