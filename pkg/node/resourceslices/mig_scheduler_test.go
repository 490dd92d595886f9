// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/partition/layout"
)

// boards is a node of GPUs that can be cut.
func boards(n int, m gpu.MIG) gpu.Snapshot {
	s := gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09", CUDA: gpu.Version{Major: 13}}}
	for i := range n {
		s.GPUs = append(s.GPUs, gpu.GPU{
			PCIAddress: fmt.Sprintf("0000:%02x:00.0", 0x10+i), UUID: fmt.Sprintf("GPU-%d", i), Index: i, ProductName: "NVIDIA H100 80GB HBM3",
			Architecture: "Hopper", ComputeCapability: gpu.Version{Major: 9}, MemoryBytes: 81559 << 20, Multiprocessors: 132, MIG: m,
		})
	}
	return s
}

func profile(name string) string {
	return fmt.Sprintf(`device.attributes["gpu.nvidia.com"].profile == "%s"`, name)
}

func (s *scheduler) id(device string) structured.DeviceID {
	return structured.MakeDeviceID(driver, s.slices[0].Spec.Pool.Name, device)
}

func (s *scheduler) release(devices ...string) {
	for _, d := range devices {
		s.allocated.Delete(s.id(d))
	}
}

func TestBuild_PartitionAllocated_KeepsWholeFromClaims(t *testing.T) {
	s := newScheduler(t, boards(2, layouttest.H100()), resourceslices.Options{})
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb")), "gpu-0000-10-00-0-mig-1g-10gb-0")
	s.want(s.claim("gpu.nvidia.com", 1), "gpu-0000-11-00-0")
	s.want(s.claim("gpu.nvidia.com", 1))
	s.want(s.claim("mig.nvidia.com", 1, profile("4g.40gb")))
	s.want(s.claim("mig.nvidia.com", 1, profile("3g.40gb")), "gpu-0000-10-00-0-mig-3g-40gb-4")
	s.want(s.claim("mig.nvidia.com", 1, profile("2g.20gb")), "gpu-0000-10-00-0-mig-2g-20gb-2")
	s.want(s.claim("mig.nvidia.com", 1), "gpu-0000-10-00-0-mig-1g-10gb-1")
	s.want(s.claim("mig.nvidia.com", 1))
	s.release("gpu-0000-10-00-0-mig-1g-10gb-0", "gpu-0000-10-00-0-mig-3g-40gb-4", "gpu-0000-10-00-0-mig-2g-20gb-2", "gpu-0000-10-00-0-mig-1g-10gb-1")
	s.want(s.claim("gpu.nvidia.com", 1), "gpu-0000-10-00-0")
}

func TestBuild_ParentUUIDMatched_AllocatesOnOneGPU(t *testing.T) {
	s := newScheduler(t, boards(2, layouttest.H100()), resourceslices.Options{})
	s.want(s.claim("mig.nvidia.com", 1, profile("3g.40gb")), "gpu-0000-10-00-0-mig-3g-40gb-4")
	c := s.claim("mig.nvidia.com", 4, profile("1g.20gb"))
	parent := resourceapi.FullyQualifiedName("gpu.nvidia.com/parentUUID")
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &parent}}
	s.want(c, "gpu-0000-11-00-0-mig-1g-20gb-6", "gpu-0000-11-00-0-mig-1g-20gb-4", "gpu-0000-11-00-0-mig-1g-20gb-0", "gpu-0000-11-00-0-mig-1g-20gb-2")
}

func TestBuild_SmallestPartitions_FillEightGPUs(t *testing.T) {
	s := newScheduler(t, boards(8, layouttest.H100()), resourceslices.Options{})
	for n := range 56 {
		if got := s.allocate(s.claim("mig.nvidia.com", 1, profile("1g.10gb"))); len(got) != 1 {
			t.Fatalf("number %d got nothing", n)
		}
	}
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb")))
}

func TestBuild_EngineAllocated_IsNotAllocatedTwice(t *testing.T) {
	s := newScheduler(t, boards(1, layouttest.H100()), resourceslices.Options{})
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb+me")), "gpu-0000-10-00-0-mig-1g-10gb-me-0")
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb+me")))
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb")), "gpu-0000-10-00-0-mig-1g-10gb-1")
}

func TestBuild_AnyDeviceRequested_AllocatesWholeGPU(t *testing.T) {
	s := newScheduler(t, boards(1, layouttest.H100()), resourceslices.Options{})
	s.want(s.claim("any.example.com", 1), "gpu-0000-10-00-0")
	s.want(s.claim("any.example.com", 1))
}

// TestBuild_RandomPartitionClaims_NeverOverlap has claims of all kinds come and go.
func TestBuild_RandomPartitionClaims_NeverOverlap(t *testing.T) {
	for name, m := range map[string]gpu.MIG{"H100": layouttest.H100(), "A100": layouttest.A100(), "12 slices": layouttest.RTXPRO6000()} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, boards(3, m), resourceslices.Options{Settings: resourceslices.Settings{AllowReset: true}})
			r := rand.New(rand.NewPCG(seedtest.Base(t), uint64(len(name))))
			var claims [][]string
			given := 0
			for range seedtest.Count(400) {
				if len(claims) > 0 && r.IntN(5) < 2 {
					n := r.IntN(len(claims))
					s.release(claims[n]...)
					claims = slices.Delete(claims, n, n+1)
					continue
				}
				var c *resourceapi.ResourceClaim
				switch r.IntN(10) {
				case 0:
					c = s.claim("gpu.nvidia.com", 1)
				case 1:
					c = s.claim("mig.nvidia.com", int64(1+r.IntN(3)))
				default:
					c = s.claim("mig.nvidia.com", 1, profile(m.Profiles[r.IntN(len(m.Profiles))].Name))
				}
				if got := s.allocate(c); len(got) > 0 {
					claims = append(claims, got)
					given++
				}
				failOnOverlap(t, m, s.allocated)
			}
			if !testing.Short() && given < 100 {
				t.Errorf("only %d claims got a device, which proves little", given)
			}
		})
	}
}

// failOnOverlap fails where two devices exclude each other.
func failOnOverlap(t *testing.T, m gpu.MIG, allocated sets.Set[structured.DeviceID]) {
	t.Helper()
	cut, whole := map[string][]layout.Choice{}, map[string]bool{}
	for id := range allocated {
		d, err := gpu.ParseName(id.Device.String())
		if err != nil {
			t.Fatal(err)
		}
		if d.Kind == gpu.KindGroup {
			for _, member := range slots(d) {
				if whole[member] {
					t.Fatalf("GPU at %s is allocated twice: %v", member, allocated.UnsortedList())
				}
				whole[member] = true
			}
			continue
		}
		if d.Kind == gpu.KindGPU {
			if whole[d.PCIAddress] {
				t.Fatalf("GPU at %s is allocated twice: %v", d.PCIAddress, allocated.UnsortedList())
			}
			whole[d.PCIAddress] = true
			continue
		}
		p, _ := m.ProfileNamed(d.Profile)
		n := slices.IndexFunc(p.Placements, func(at gpu.Placement) bool { return at.Start == d.Start })
		c := layout.Choice{Profile: p, Placement: p.Placements[n]}
		if !layouttest.Fits(m.Profiles, cut[d.PCIAddress], c) {
			t.Fatalf("%s does not fit beside what else is allocated: %v", id, allocated.UnsortedList())
		}
		cut[d.PCIAddress] = append(cut[d.PCIAddress], c)
	}
	for address := range whole {
		if len(cut[address]) > 0 {
			t.Fatalf("GPU at %s is allocated whole and in part", address)
		}
	}
}

// TestBuild_PartitionHeld_KeepsItsPlace holds whatever became of its GPU or its mode.
func TestBuild_PartitionHeld_KeepsItsPlace(t *testing.T) {
	const held = "gpu-0000-10-00-0-mig-2g-20gb-2"
	d, err := gpu.ParseName(held)
	if err != nil {
		t.Fatal(err)
	}
	h := resourceslices.Held{Device: d, Size: 2, MemoryBytes: 20096 << 20, GPU: gpu.GPU{PCIAddress: d.PCIAddress}}
	faulty, off := layouttest.H100(), layouttest.H100()
	faulty.Profiles, faulty.Fault = nil, "misread"
	off.Switchable = false
	for name, s := range map[string]gpu.Snapshot{"well": boards(1, layouttest.H100()), "misread": boards(1, faulty), "not to be switched": boards(1, off), "gone": {}} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, s, resourceslices.Options{Held: []resourceslices.Held{h}})
			s.allocated.Insert(structured.MakeDeviceID(driver, s.slices[0].Spec.Pool.Name, held))
			s.want(s.claim("gpu.nvidia.com", 1))
			s.want(s.claim("mig.nvidia.com", 1, profile("4g.40gb")))
		})
	}
}
