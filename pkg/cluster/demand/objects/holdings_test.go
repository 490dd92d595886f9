// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/gpu"
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
	four, _ := gpu.ParseName("nvlink-4-0000-04-00-0")
	members := map[gpu.Device][]string{four: {"0000:04:00.0", "0000:05:00.0", "0000:06:00.0", "0000:07:00.0"}}
	count := func(h *Held) (whole, part string) {
		var gpus []demand.GPU
		for i := range 8 {
			gpus = append(gpus, demand.GPU{Address: fmt.Sprintf("0000:%02x:00.0", i)})
		}
		h.Mark(gpus, members)
		for i, g := range gpus {
			if g.Whole {
				whole += fmt.Sprint(i)
			}
			if g.Part {
				part += fmt.Sprint(i)
			}
		}
		return whole, part
	}
	var h Holdings
	shares := []*resourceapi.ResourceClaim{holding("n1", "gpu-0000-00-00-0"), holding("n1", "gpu-0000-00-00-0")}
	for _, c := range shares {
		c.Status.Allocation.Devices.Results[0].ShareID = new(types.UID("u"))
	}
	all := append(slices.Clone(shares), holding("n1", "gpu-0000-01-00-0-mig-1g-10gb-0", "gpu-0000-01-00-0-mig-1g-10gb-1"),
		holding("n1", "nvlink-4-0000-04-00-0", "monitor-0000-02-00-0", "gpu-0000-7f-00-0"), holding("n2", "gpu-0000-01-00-0-mig-2g-20gb-2"),
		&resourceapi.ResourceClaim{})
	for _, c := range all {
		h.Replace(nil, c, driver)
		h.Replace(c, c, driver)
	}
	if whole, part := count(h.Of("n1")); whole != "04567" || part != "01" {
		t.Errorf("n1: GPUs %s are held whole, and %s in part; want 04567 and 01", whole, part)
	}
	for what, want := range map[string][]string{"1g.10gb": {"n1"}, "2g.20gb": {"n2"}, "3g.40gb": nil, demand.Groups: {"n1"}, demand.Shares: {"n1"}} {
		if got := h.Holders(what); !slices.Equal(got, want) {
			t.Errorf("%s: held on %q, want %q", what, got, want)
		}
	}
	h.Replace(shares[0], nil, driver)
	if whole, part := count(h.Of("n1")); whole != "04567" || part != "01" {
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
	if whole, part := count(h.Of("n1")); whole+part != "" {
		t.Error("devices that no claim has are held")
	}
}
