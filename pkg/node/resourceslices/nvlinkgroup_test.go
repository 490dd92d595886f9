// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// bridged has four GPUs of which two are bridged to each other, and two.
func bridged() gpu.Snapshot {
	s := boards(4, gpu.MIG{})
	for i := range s.GPUs {
		other := s.GPUs[(i+2)%4].PCIAddress
		s.GPUs[i].Links = []gpu.Link{{Version: 3, Peer: gpu.PeerGPU, PeerAddress: other}, {Index: 1, Version: 3, Peer: gpu.PeerGPU, PeerAddress: other}}
	}
	return s
}

func linked(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	group := resourceapi.FullyQualifiedName("gpu.nvidia.com/nvlinkGroup")
	c.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &group}}
	return c
}

func TestBuild_NVLinkGroupMatched_AllocatesLinkedGPUs(t *testing.T) {
	s := newScheduler(t, bridged(), resourceslices.Options{})
	s.want(s.claim("gpu.nvidia.com", 1), "gpu-0000-10-00-0")
	// The first is taken, so its peer has no partner. The other two have each other.
	s.want(linked(s.claim("gpu.nvidia.com", 2)), "gpu-0000-11-00-0", "gpu-0000-13-00-0")
	s.want(linked(s.claim("gpu.nvidia.com", 2)))
}

func TestBuild_NVLinkGroup_IsNamedByItsMembers(t *testing.T) {
	names := func(snapshot gpu.Snapshot) (out []string) {
		of := map[string]string{}
		pool, _ := resourceslices.Build(snapshot, nil, resourceslices.Options{Node: "n"})
		for _, slice := range pool.Slices {
			for _, d := range slice.Devices {
				name := ""
				if a := d.Attributes["nvlinkGroup"].StringValue; a != nil {
					name = *a
					if links, version := d.Attributes["nvlinkLinks"].IntValue, d.Attributes["nvlinkVersion"].IntValue; links == nil || version == nil {
						t.Errorf("%s is in %s and has %v links of version %v", d.Name, name, links, version)
					}
				}
				of[d.Name] = name
			}
		}
		for _, g := range snapshot.GPUs {
			out = append(out, of[gpu.NameOf(g.PCIAddress)])
		}
		return out
	}
	switched := boards(3, gpu.MIG{})
	for i := range switched.GPUs {
		switched.GPUs[i].Links = []gpu.Link{{Version: 4, Peer: gpu.PeerSwitch}}
	}
	alone := boards(2, gpu.MIG{})
	alone.GPUs[0].Links = []gpu.Link{{Version: 4, Peer: gpu.PeerSwitch}}
	for name, c := range map[string]struct {
		snapshot gpu.Snapshot
		want     []string
	}{
		"bridges":         {bridged(), []string{"nvlink-2-0000-10-00-0", "nvlink-2-0000-11-00-0", "nvlink-2-0000-10-00-0", "nvlink-2-0000-11-00-0"}},
		"switches":        {switched, []string{"nvlink-3-0000-10-00-0", "nvlink-3-0000-10-00-0", "nvlink-3-0000-10-00-0"}},
		"one on a switch": {alone, []string{"", ""}},
	} {
		if got := names(c.snapshot); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
