// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// share is a part of a device that a claim was given.
type share struct {
	device structured.DeviceID
	id     types.UID
	took   map[resourceapi.QualifiedName]resource.Quantity
}

func (s *scheduler) share(d resourceapi.DeviceRequestAllocationResult) {
	one := share{device: structured.MakeDeviceID(d.Driver, d.Pool, d.Device), id: *d.ShareID, took: d.ConsumedCapacity}
	s.shares = append(s.shares, one)
	s.used.Insert(structured.NewDeviceConsumedCapacity(one.device, one.took))
}

// unshare releases the n-th share.
func (s *scheduler) unshare(n int) {
	s.used.Remove(structured.NewDeviceConsumedCapacity(s.shares[n].device, s.shares[n].took))
	s.shares = slices.Delete(s.shares, n, n+1)
}

// shareable is a node with MPS and without a settings file.
var shareable = withSharing(sharing.Node{MPS: true})

func replicated(strategy v1beta1.Strategy, n int) resourceslices.Options {
	return withSharing(sharingtest.Source{OfferOf: func(g gpu.GPU, profile string, standing v1beta1.Strategy) (sharing.Offer, bool) {
		return sharing.OfferOf(sharing.Policy{Strategy: strategy, Replicas: n}.With(standing), g, profile, true)
	}})
}

// requesting has a claim ask for capacities, as name and amount in turn.
func requesting(c *resourceapi.ResourceClaim, capacities ...string) *resourceapi.ResourceClaim {
	requests := map[resourceapi.QualifiedName]resource.Quantity{}
	for i := 0; i < len(capacities); i += 2 {
		requests[resourceapi.QualifiedName(capacities[i])] = resource.MustParse(capacities[i+1])
	}
	c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: requests}
	return c
}

func (s *scheduler) gpu(capacities ...string) *resourceapi.ResourceClaim {
	return requesting(s.claim("gpu.nvidia.com", 1), capacities...)
}

func mpsBoards(n int, m gpu.MIG) gpu.Snapshot {
	s := boards(n, m)
	for i := range s.GPUs {
		s.GPUs[i].MPSCapable = true
	}
	return s
}

func TestBuild_MemoryRequested_AllocatesShares(t *testing.T) {
	s := newScheduler(t, mpsBoards(2, layouttest.H100()), shareable)
	const first, second = "gpu-0000-10-00-0", "gpu-0000-11-00-0"
	for _, memory := range []string{"10Gi", "20Gi", "10Gi", "39Gi"} {
		s.want(s.gpu("memory", memory), first)
	}
	// 79 of 79.6 GiB are taken: the next goes elsewhere, and the whole GPU, its partitions too.
	s.want(s.gpu("memory", "1Gi"), second)
	s.want(s.claim("gpu.nvidia.com", 1))
	s.want(s.claim("mig.nvidia.com", 1))
	s.want(s.gpu("memory", "79Gi"))
	s.want(s.gpu("memory", "500Mi"), first)
}

func TestBuild_NoCapacityRequested_AllocatesGPUAlone(t *testing.T) {
	s := newScheduler(t, mpsBoards(1, gpu.MIG{}), shareable)
	s.want(s.claim("gpu.nvidia.com", 1), "gpu-0000-10-00-0")
	s.want(s.gpu("memory", "1Mi"))
	s.want(s.gpu("memory", "1Mi", "compute", "0"))
	s.want(monitoring(s.claim("monitor.gpu.nvidia.com", 1)), "monitor-0000-10-00-0")
}

func TestBuild_ComputeRequested_ReservesCompute(t *testing.T) {
	s := newScheduler(t, mpsBoards(1, gpu.MIG{}), shareable)
	s.want(s.gpu("memory", "10Gi", "compute", "60"), "gpu-0000-10-00-0")
	s.want(s.gpu("memory", "10Gi", "compute", "41"))
	s.want(s.gpu("memory", "10Gi", "compute", "40"), "gpu-0000-10-00-0")
	s.want(s.gpu("memory", "10Gi"), "gpu-0000-10-00-0")
	// Compute alone leaves the memory at its default, which is all.
	s.want(s.gpu("compute", "10"))
}

func TestBuild_MaxSharesAllocated_AllocatesNoMore(t *testing.T) {
	s := newScheduler(t, mpsBoards(1, gpu.MIG{}), shareable)
	for range 48 {
		s.want(s.gpu("memory", "1Gi"), "gpu-0000-10-00-0")
	}
	s.want(s.gpu("memory", "1Gi"))
	s.want(s.gpu("memory", "1Gi", "shares", "2"))
}

func TestBuild_MemoryOfPartitionRequested_AllocatesShares(t *testing.T) {
	s := newScheduler(t, mpsBoards(1, layouttest.H100()), shareable)
	of := func() *resourceapi.ResourceClaim {
		return requesting(s.claim("mig.nvidia.com", 1, profile("3g.40gb")), "memory", "19Gi")
	}
	const upper, lower = "gpu-0000-10-00-0-mig-3g-40gb-4", "gpu-0000-10-00-0-mig-3g-40gb-0"
	s.want(of(), upper)
	s.want(of(), upper)
	s.want(of(), lower)
	s.want(s.gpu("memory", "1Gi"))
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb")))
}

func TestBuild_ReplicasConfigured_AllocatesEqualShares(t *testing.T) {
	for name, strategy := range map[string]v1beta1.Strategy{"time-slicing": v1beta1.StrategyTimeSlicing, "mps": v1beta1.StrategyMPS} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, mpsBoards(8, gpu.MIG{}), replicated(strategy, 4))
			on := map[string]int{}
			for range 32 {
				for _, d := range s.allocate(s.claim("gpu.nvidia.com", 1)) {
					on[d]++
				}
			}
			for d, n := range on {
				if n != 4 {
					t.Errorf("%d claims are on %s", n, d)
				}
			}
			if len(on) != 8 {
				t.Errorf("claims are on %d GPUs", len(on))
			}
			s.want(s.claim("gpu.nvidia.com", 1))
		})
	}
}

func TestBuild_ReplicasOfPartitions_AllocatesTwentyEightShares(t *testing.T) {
	s := newScheduler(t, mpsBoards(1, layouttest.H100()), replicated(v1beta1.StrategyTimeSlicing, 4))
	for n := range 28 {
		if got := s.allocate(s.claim("mig.nvidia.com", 1, profile("1g.10gb"))); len(got) != 1 {
			t.Fatalf("number %d got nothing", n)
		}
	}
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb")))
}

// TestBuild_RandomShareClaims_NeverOverdraw has wholes, shares and partitions of all kinds come and go.
func TestBuild_RandomShareClaims_NeverOverdraw(t *testing.T) {
	m := layouttest.H100()
	s := newScheduler(t, mpsBoards(3, m), shareable)
	r := rand.New(rand.NewPCG(seedtest.Base(t), 4))
	given := 0
	for range seedtest.Count(500) {
		if len(s.shares) > 0 && r.IntN(5) < 2 {
			s.unshare(r.IntN(len(s.shares)))
			continue
		}
		var c *resourceapi.ResourceClaim
		class := s.claim("gpu.nvidia.com", 1)
		if r.IntN(2) == 0 {
			class = s.claim("mig.nvidia.com", 1, profile(m.Profiles[r.IntN(len(m.Profiles))].Name))
		}
		switch r.IntN(4) {
		case 0:
			c = class
		case 1:
			c = requesting(class, "memory", fmt.Sprintf("%dMi", 1+r.IntN(30000)), "compute", fmt.Sprint(r.IntN(101)))
		default:
			c = requesting(class, "memory", fmt.Sprintf("%dMi", 1+r.IntN(9000)))
		}
		given += len(s.allocate(c))
		s.checkShares(m)
	}
	if !testing.Short() && given < 150 {
		t.Errorf("only %d claims got a share, which proves little", given)
	}
}

// checkShares fails where the shares of a device take more than it has, or two devices exclude each other.
func (s *scheduler) checkShares(m gpu.MIG) {
	s.t.Helper()
	sums, devices := map[string]map[resourceapi.QualifiedName]int64{}, sets.New[structured.DeviceID]()
	for _, one := range s.shares {
		devices.Insert(one.device)
		name := one.device.Device.String()
		if sums[name] == nil {
			sums[name] = map[resourceapi.QualifiedName]int64{}
		}
		for capacity, took := range one.took {
			sums[name][capacity] += took.Value()
		}
	}
	for name, sum := range sums {
		d, err := gpu.ParseName(name)
		if err != nil {
			s.t.Fatal(err)
		}
		has := int64(81559 << 20)
		if p, ok := m.ProfileNamed(d.Profile); ok {
			has = int64(p.MemoryBytes)
		}
		if sum["memory"] > has || sum["compute"] > 100 || sum["shares"] > 48 {
			s.t.Fatalf("the shares of %s take %v", name, sum)
		}
	}
	failOnOverlap(s.t.(*testing.T), m, devices)
}

// TestBuild_SharesOfOtherStrategy_ArePublishedAsTheyAre is for settings that changed while claims had shares.
func TestBuild_SharesOfOtherStrategy_ArePublishedAsTheyAre(t *testing.T) {
	node := mpsBoards(2, layouttest.H100())
	held := func(d gpu.Device) resourceslices.Held {
		return resourceslices.Held{Device: d, Shared: v1beta1.StrategyMPS, GPU: node.GPUs[0]}
	}
	whole := gpu.Device{Kind: gpu.KindGPU, PCIAddress: node.GPUs[0].PCIAddress}
	part := gpu.Device{Kind: gpu.KindMIG, PCIAddress: node.GPUs[0].PCIAddress, Profile: "1g.10gb", Start: 2}
	pool, _ := resourceslices.Build(node, nil, resourceslices.Options{
		Node: "n1", Taints: true, SharedDevices: true, Counters: true, Sharing: replicated(v1beta1.StrategyTimeSlicing, 4).Sharing,
		Held: []resourceslices.Held{held(whole), held(part)},
	})
	for _, s := range pool.Slices {
		for _, d := range s.Devices {
			want := "time-slicing"
			if d.Name == whole.Name() || d.Name == part.Name() {
				want = "mps"
			}
			if a := d.Attributes["isolation"]; a.StringValue == nil || strings.HasPrefix(d.Name, "gpu-") && *a.StringValue != want {
				t.Errorf("%s has the isolation %v, want %s", d.Name, a.StringValue, want)
			}
		}
	}
}
