// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/wire/demand"
)

func holding(node string, devices ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}}}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: node + "/gpu", Device: d})
	}
	return c
}

func TestHoldings_Claims_CountedByNode(t *testing.T) {
	gpus := map[string]bool{}
	for i := range 8 {
		gpus[fmt.Sprintf("0000:%02x:00.0", i)] = true
	}
	var h Holdings
	shares := []*resourceapi.ResourceClaim{holding("n1", "gpu-0000-00-00-0"), holding("n1", "gpu-0000-00-00-0")}
	all := append(slices.Clone(shares), holding("n1", "gpu-0000-01-00-0-mig-1g-10gb-0", "gpu-0000-01-00-0-mig-1g-10gb-1"),
		holding("n1", "nvlink-4-0000-04-00-0", "monitor-0000-02-00-0", "gpu-0000-7f-00-0"), holding("n2", "gpu-0000-01-00-0-mig-2g-20gb-2"),
		&resourceapi.ResourceClaim{})
	for _, c := range all {
		h.Replace(nil, c, driver)
		h.Replace(c, c, driver)
	}
	if full, partly := h.Of("n1").Count(gpus); full != 5 || partly != 1 {
		t.Errorf("n1: %d full and %d partly held, want 5 and 1", full, partly)
	}
	for what, want := range map[string][]string{"1g.10gb": {"n1"}, "2g.20gb": {"n2"}, "3g.40gb": nil, demand.Groups: {"n1"}} {
		if got := h.Holders(what); !slices.Equal(got, want) {
			t.Errorf("%s: held on %q, want %q", what, got, want)
		}
	}
	h.Replace(shares[0], nil, driver)
	if full, _ := h.Of("n1").Count(gpus); full != 5 {
		t.Error("a GPU is free while a claim has a share of it")
	}
	rand.New(rand.NewPCG(seedtest.Base(t), 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, c := range all {
		if c != shares[0] {
			h.Replace(c, (*resourceapi.ResourceClaim)(nil), driver)
		}
	}
	if len(h.nodes) != 0 || h.Of("n1") != nil {
		t.Errorf("%v stay after the claims", h.nodes)
	}
	if full, partly := h.Of("n1").Count(gpus); full+partly != 0 {
		t.Error("devices that no claim has are held")
	}
}
