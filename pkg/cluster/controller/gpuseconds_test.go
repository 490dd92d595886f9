// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/show/metrics"
)

const h100 = "NVIDIA H100 80GB HBM3"

func TestCluster_ShortClaim_CountsForItsNamespace(t *testing.T) {
	objects := machine(t, "hgx-h100", "a", 0)
	names := gpusOf(t, "hgx-h100")
	one := func(name string, devices ...string) *resourceapi.ResourceClaim {
		c := holding(name, "a", devices...)
		c.UID = types.UID(name)
		return c
	}
	long := one("long", names[0])
	long.Namespace = "team-b"
	at(t, append(objects, long, one("admin", "!"+names[2])), func(t *testing.T, e *env, c *Controller) {
		read := func() map[metrics.Tenant]float64 {
			cluster, ok := c.Cluster()
			if !ok {
				t.Fatal("not the leader")
			}
			return cluster.GPUSeconds
		}
		before := read()[metrics.Tenant{Namespace: "team-b", Model: h100}]
		e.put(one("short", names[1]))
		synctest.Wait()
		pass(4 * time.Second)
		e.remove("resourceclaims", "ns/short")
		synctest.Wait()
		pass(6 * time.Second)
		got := read()
		got[metrics.Tenant{Namespace: "team-b", Model: h100}] -= before
		want := map[metrics.Tenant]float64{{Namespace: "ns", Model: h100}: 4, {Namespace: "team-b", Model: h100}: 10}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, .01)); diff != "" {
			t.Errorf("GPU seconds (-want +got)\n%s", diff)
		}
	})
}

// TestGPUSeconds_UpdateWhileSlicesAreMissing_NoTimeLost has a claim whose status changes before its node is published again.
func TestGPUSeconds_UpdateWhileSlicesAreMissing_NoTimeLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		published := false
		s := newGPUSeconds(func(*resourceapi.AllocationResult) (map[string]float64, bool) {
			return map[string]float64{h100: 1}, published
		})
		for range 2 {
			s.see(holding("x", "a", "gpu-0000-1b-00-0"))
			time.Sleep(10 * time.Second)
		}
		published = true
		if got := s.read()[metrics.Tenant{Namespace: "ns", Model: h100}]; got != 20 {
			t.Errorf("%v GPU seconds are counted, want 20", got)
		}
	})
}

func TestWeigh_Devices_ChargedLikeOnTheirNode(t *testing.T) {
	objects := machine(t, "hgx-h100", "a", 0)
	names := gpusOf(t, "hgx-h100")
	at(t, objects, func(t *testing.T, _ *env, c *Controller) {
		share := func(memory, compute string) *resourceapi.ResourceClaim {
			claim := holding("share", "a", names[0])
			claim.Status.Allocation.Devices.Results[0].ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(memory), "compute": resource.MustParse(compute),
			}
			return claim
		}
		both := share("56Gi", "10")
		both.Status.Allocation.Devices.Results = append(both.Status.Allocation.Devices.Results, share("8Gi", "75").Status.Allocation.Devices.Results...)
		for name, one := range map[string]struct {
			claim *resourceapi.ResourceClaim
			want  float64
		}{
			"a GPU":                 {holding("x", "a", names[0]), 1},
			"two GPUs":              {holding("x", "a", names[0], names[1]), 2},
			"a partition":           {holding("x", "a", names[0]+"-mig-3g-40gb-4"), .5},
			"a small partition":     {holding("x", "a", names[0]+"-mig-1g-10gb-4"), .125},
			"a group":               {holding("x", "a", strings.Replace(names[0], "gpu-", "nvlink-4-", 1)), 4},
			"all of a GPU's memory": {share("81559Mi", "0"), 1},
			"reserved SMs":          {share("8Gi", "75"), .75},
			"different shares":      {both, 1},
			"admin access":          {holding("x", "a", "!"+names[0]), 0},
		} {
			got, ok := c.weigh(one.claim.Status.Allocation)
			if diff := cmp.Diff(one.want, got[h100], cmpopts.EquateApprox(0, .001)); !ok || diff != "" {
				t.Errorf("%s: %v (-want +got)\n%s", name, ok, diff)
			}
		}
		if _, ok := c.weigh(holding("x", "no-such-node", names[0]).Status.Allocation); ok {
			t.Error("a claim of an unknown node has a weight")
		}
	})
}
