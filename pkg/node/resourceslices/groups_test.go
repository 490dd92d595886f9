// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// hgx is a node of GPUs on switches.
func hgx(n int, m gpu.MIG) gpu.Snapshot {
	s := mpsBoards(n, m)
	for i := range s.GPUs {
		node := i / max(n/2, 1)
		s.GPUs[i].NUMANode = &node
		for l := range 18 {
			s.GPUs[i].Links = append(s.GPUs[i].Links, gpu.Link{Index: l, Version: 4, Peer: gpu.PeerSwitch})
		}
	}
	return s
}

// pairs is a node of GPUs on bridges, each of two.
func pairs(n int, m gpu.MIG) gpu.Snapshot {
	s := boards(n, m)
	for i := range s.GPUs {
		s.GPUs[i].Links = []gpu.Link{{Version: 4, Peer: gpu.PeerGPU, PeerAddress: s.GPUs[i^1].PCIAddress}}
	}
	return s
}

// slots are the GPUs of a group on such a node.
func slots(d gpu.Device) []string {
	var first int
	_, _ = fmt.Sscanf(d.PCIAddress, "0000:%x:00.0", &first)
	var out []string
	for n := range d.Size {
		out = append(out, fmt.Sprintf("0000:%02x:00.0", first+n))
	}
	return out
}

func (s *scheduler) group(size int) *resourceapi.ResourceClaim {
	return s.claim("nvlink.gpu.nvidia.com", 1, fmt.Sprintf(`device.attributes["gpu.nvidia.com"].gpuCount == %d`, size))
}

const (
	quad0, quad4 = "nvlink-4-0000-10-00-0", "nvlink-4-0000-14-00-0"
	pair0, pair2 = "nvlink-2-0000-10-00-0", "nvlink-2-0000-12-00-0"
	octet        = "nvlink-8-0000-10-00-0"
)

func at(n int) string { return fmt.Sprintf("gpu-0000-1%d-00-0", n) }

func TestBuild_GroupsWholesAndPartitions_ExcludeEachOther(t *testing.T) {
	s := newScheduler(t, hgx(8, layouttest.H100()), resourceslices.Options{})
	s.want(s.group(4), quad4)
	s.want(s.claim("mig.nvidia.com", 1, profile("1g.10gb")), at(0)+"-mig-1g-10gb-0")
	s.want(s.group(4))
	s.want(s.group(8))
	s.want(s.group(2), pair2)
	s.want(s.group(2))
	s.want(s.claim("gpu.nvidia.com", 1), at(1))
	s.want(s.claim("gpu.nvidia.com", 1))
	s.want(s.claim("mig.nvidia.com", 1, profile("7g.80gb")))
	s.release(at(0)+"-mig-1g-10gb-0", at(1))
	s.want(s.group(2), pair0)
	s.release(pair0, pair2)
	s.want(s.group(4), quad0)
	s.want(s.group(8))
	s.release(quad0, quad4)
	s.want(s.group(8), octet)
	s.want(s.claim("gpu.nvidia.com", 1))
	s.want(s.claim("mig.nvidia.com", 1))
}

func TestBuild_GroupAndTwoGPUsAllocated_AllocatesAnotherGroup(t *testing.T) {
	s := newScheduler(t, hgx(8, layouttest.H100()), resourceslices.Options{})
	s.want(s.claim("gpu.nvidia.com", 1), at(0))
	s.want(s.group(2), pair2)
	s.want(s.claim("gpu.nvidia.com", 1), at(1))
	s.want(s.group(4), quad4)
}

func TestBuild_ShareAllocated_KeepsGroupFromClaims(t *testing.T) {
	s := newScheduler(t, hgx(2, gpu.MIG{}), shareable)
	s.want(s.gpu("memory", "1Gi"), at(0))
	s.want(s.gpu("memory", "1Gi"), at(0))
	s.want(s.group(2))
	s.unshare(0)
	s.want(s.group(2))
	s.unshare(0)
	s.want(s.group(2), pair0)
	s.want(s.gpu("memory", "1Gi"))
}

func TestBuild_ClassOfDriverAlone_AllocatesGPUsBeforeGroups(t *testing.T) {
	s := newScheduler(t, hgx(8, layouttest.H100()), resourceslices.Options{})
	for n := range 8 {
		s.want(s.claim("any.example.com", 1), at(n))
	}
	s.want(s.claim("any.example.com", 1))
}

// TestBuild_RandomGroupClaims_NeverOverlap has groups come and go between all other kinds of devices.
func TestBuild_RandomGroupClaims_NeverOverlap(t *testing.T) {
	for name, board := range map[string]gpu.Snapshot{"switches": hgx(8, layouttest.H100()), "bridges": pairs(6, layouttest.H100())} {
		t.Run(name, func(t *testing.T) { randomGroupClaims(t, board) })
	}
}

func randomGroupClaims(t *testing.T, board gpu.Snapshot) {
	m := board.GPUs[0].MIG
	s := newScheduler(t, board, resourceslices.Options{})
	r := rand.New(rand.NewPCG(seedtest.Base(t), 5))
	var claims [][]string
	groups := 0
	for range seedtest.Count(120 * len(board.GPUs)) {
		if len(claims) > 0 && r.IntN(2) == 0 {
			n := r.IntN(len(claims))
			s.release(claims[n]...)
			claims = slices.Delete(claims, n, n+1)
			continue
		}
		var c *resourceapi.ResourceClaim
		switch r.IntN(6) {
		case 0:
			c = s.claim("gpu.nvidia.com", int64(1+r.IntN(2)))
		case 1:
			c = linked(s.claim("gpu.nvidia.com", 2))
		case 2, 3:
			c = s.group(2 << r.IntN(3))
		default:
			c = s.claim("mig.nvidia.com", 1, profile(m.Profiles[r.IntN(len(m.Profiles))].Name))
		}
		if got := s.allocate(c); len(got) > 0 {
			claims = append(claims, got)
			if strings.HasPrefix(got[0], "nvlink") {
				groups++
			}
		}
		failOnOverlap(t, m, s.allocated)
	}
	if !testing.Short() && groups < 30 {
		t.Errorf("only %d groups were allocated, which proves little", groups)
	}
}

// held returns the held devices of a claim with a group.
func held(s gpu.Snapshot, name string, members ...int) []resourceslices.Held {
	d, err := gpu.ParseName(name)
	if err != nil {
		panic(err)
	}
	var out []resourceslices.Held
	for _, n := range members {
		out = append(out, resourceslices.Held{Device: d, GPU: s.GPUs[n]})
	}
	return out
}

func published(s gpu.Snapshot, o resourceslices.Options) (names []string, warnings []resourceslices.Warning) {
	o.Node, o.Taints, o.SharedDevices = "n1", true, true
	pool, warnings := resourceslices.Build(s, nil, o)
	for _, slice := range pool.Slices {
		for _, d := range slice.Devices {
			if strings.HasPrefix(d.Name, "monitor") || strings.Contains(d.Name, "-mig-") {
				continue
			}
			name := strings.NewReplacer("-00-0", "", "-0000-", "-").Replace(d.Name)
			for _, taint := range d.Taints {
				name += " " + taint.Value
			}
			names = append(names, name)
		}
	}
	return names, warnings
}

func TestBuild_LinksAndHeldGroups_PublishesExpectedGroups(t *testing.T) {
	counters := resourceslices.Options{Counters: true}
	with := func(o resourceslices.Options, h ...resourceslices.Held) resourceslices.Options {
		o.Held = h
		return o
	}
	unlinked := func(n int) gpu.Snapshot {
		s := hgx(4, gpu.MIG{})
		s.GPUs[n].Links = nil
		return s
	}
	gone := func(n int) gpu.Snapshot {
		s := hgx(4, gpu.MIG{})
		s.GPUs = slices.Delete(s.GPUs, n, n+1)
		return s
	}
	cut := hgx(4, layouttest.H100())
	cut.GPUs[0].MIG.Enabled, cut.GPUs[0].MIG.Pending = true, true
	well := hgx(4, gpu.MIG{})
	for name, c := range map[string]struct {
		s        gpu.Snapshot
		o        resourceslices.Options
		want     string
		warnings int
	}{
		"all":                        {well, counters, "gpu-10 nvlink-4-10 gpu-11 gpu-12 nvlink-2-12 nvlink-2-10 gpu-13", 0},
		"none on PCIe":               {mpsBoards(4, gpu.MIG{}), counters, "gpu-10 gpu-11 gpu-12 gpu-13", 0},
		"none without counters":      {well, resourceslices.Options{}, "gpu-10 gpu-11 gpu-12 gpu-13", 0},
		"pairs on bridges":           {bridged(), counters, "gpu-10 nvlink-2-10 gpu-12 gpu-11 nvlink-2-11 gpu-13", 0},
		"a link failed":              {unlinked(1), counters, "gpu-11 gpu-10 gpu-12 nvlink-2-12 gpu-13", 0},
		"held":                       {well, with(counters, held(well, pair0, 0, 1)...), "gpu-10 nvlink-4-10 gpu-11 gpu-12 nvlink-2-12 nvlink-2-10 gpu-13", 0},
		"a link of a held one fails": {unlinked(1), with(counters, held(well, pair0, 0, 1)...), "gpu-11 gpu-10 gpu-12 nvlink-2-12 gpu-13 nvlink-2-10 nvlink", 1},
		// GPU 1 gone, 10 and 12 move together: the name is the held group's as long as it is held.
		"a member of a held one goes":        {gone(1), with(counters, held(well, pair0, 0, 1)...), "gpu-10 gpu-12 gpu-13 nvlink-2-10 nvlink", 1},
		"a member went":                      {gone(1), counters, "gpu-10 nvlink-2-10 gpu-12 gpu-13", 0},
		"held, and no counters any more":     {well, with(resourceslices.Options{}, held(well, pair0, 0, 1)...), "gpu-12 gpu-13 nvlink-2-10", 0},
		"an administrator's mode":            {cut, counters, "gpu-11 gpu-12 nvlink-2-12 gpu-13", 1},
		"a held one of unnameable GPUs":      {well, with(counters, resourceslices.Held{Device: gpu.Device{Kind: gpu.KindGroup, Size: 2, PCIAddress: "0000:10:00.0"}}), "gpu-10 nvlink-4-10 gpu-11 gpu-12 nvlink-2-12 nvlink-2-10 gpu-13", 1},
		"a held one without a proper name":   {well, with(counters, resourceslices.Held{Device: gpu.Device{Kind: gpu.KindGroup, PCIAddress: "0000:10:00.0"}, GPU: well.GPUs[0]}), "gpu-10 nvlink-4-10 gpu-11 gpu-12 nvlink-2-12 nvlink-2-10 gpu-13", 1},
		"more than the API has counters for": {hgx(40, gpu.MIG{}), counters, "", 1},
	} {
		got, warnings := published(c.s, c.o)
		if c.want == "" {
			if i := slices.IndexFunc(got, func(n string) bool { return strings.HasPrefix(n, "nvlink") }); i >= 0 || len(got) != 40 {
				t.Errorf("%s: %q", name, got)
			}
		} else if diff := cmp.Diff(strings.Fields(c.want), strings.Fields(strings.Join(got, " "))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if len(warnings) != c.warnings {
			t.Errorf("%s: warnings %+v, want %d", name, warnings, c.warnings)
		}
	}
}

// TestBuild_GroupHeld_KeepsItsGPUs holds whatever became of its links and its GPUs.
func TestBuild_GroupHeld_KeepsItsGPUs(t *testing.T) {
	well := hgx(4, layouttest.H100())
	unlinked, gone, parted := hgx(4, layouttest.H100()), hgx(4, layouttest.H100()), bridged()
	unlinked.GPUs[1].Links = nil
	gone.GPUs = slices.Delete(gone.GPUs, 1, 2)
	for name, s := range map[string]gpu.Snapshot{"well": well, "on bridges": pairs(4, layouttest.H100()), "a link failed": unlinked, "a GPU is gone": gone, "the driver is gone": {}, "wired otherwise": parted} {
		t.Run(name, func(t *testing.T) {
			s := newScheduler(t, s, resourceslices.Options{Held: held(well, pair0, 0, 1)})
			s.allocated.Insert(s.id(pair0))
			for range 2 { // There are two more.
				for _, d := range s.allocate(s.claim("gpu.nvidia.com", 1)) {
					if d == at(0) || d == at(1) {
						t.Errorf("%s is given out again", d)
					}
				}
			}
			s.want(s.claim("gpu.nvidia.com", 1))
			s.want(s.claim("mig.nvidia.com", 1))
			s.want(s.group(2))
		})
	}
}

// TestBuild_PairsHeldTwice_OthersStayFree has two claims that hold the same GPU. An overdrawn counter would keep all
// devices from claims.
func TestBuild_PairsHeldTwice_OthersStayFree(t *testing.T) {
	board := pairs(4, layouttest.H100())
	other := resourceslices.Held{Device: gpu.Device{Kind: gpu.KindGPU, PCIAddress: board.GPUs[1].PCIAddress}, GPU: board.GPUs[1]}
	s := newScheduler(t, board, resourceslices.Options{Held: append(held(board, pair0, 0, 1), other)})
	s.allocated.Insert(s.id(pair0), s.id(at(1)))
	s.want(s.group(2), pair2)
	s.want(s.group(2))
	s.want(s.claim("gpu.nvidia.com", 1))
	s.want(s.claim("mig.nvidia.com", 1))
}

func TestBuild_Group_PublishesCommonAttributes(t *testing.T) {
	s := hgx(4, gpu.MIG{})
	for i := range s.GPUs {
		s.GPUs[i].Fabric = gpu.Fabric{State: gpu.FabricReady, ClusterUUID: "7b2d", CliqueID: 3}
		s.GPUs[i].PCIeRoot = []string{"pci0000:0f", "pci0000:0f", "pci0000:1f", "pci0000:2f"}[i]
	}
	pool, _ := resourceslices.Build(s, nil, resourceslices.Options{Node: "n1", Counters: true})
	text := map[string]string{}
	for _, slice := range pool.Slices {
		for _, d := range slice.Devices {
			one := map[string]any{}
			for name, a := range d.Attributes {
				switch {
				case a.StringValue != nil:
					one[string(name)] = *a.StringValue
				case a.IntValue != nil:
					one[string(name)] = *a.IntValue
				case a.VersionValue != nil:
					one[string(name)] = *a.VersionValue
				}
			}
			for name, c := range d.Capacity {
				one[string(name)] = c.Value.String()
			}
			data, _ := json.Marshal(one)
			text[d.Name] = string(data)
		}
	}
	const common = `"architecture":"Hopper","cliqueID":3,"cudaComputeCapability":"9.0.0","cudaDriverVersion":"13.0.0","driverVersion":"580.126.9","fabricClusterUUID":"7b2d",`
	for name, want := range map[string]string{
		pair0: `{` + common + `"gpuCount":2,"memory":"163118Mi","nvlinkGroup":"` + quad0 + `","productName":"NVIDIA H100 80GB HBM3","resource.kubernetes.io/numaNode":0,"resource.kubernetes.io/pcieRoot":"pci0000:0f","type":"nvlink-group"}`,
		pair2: `{` + common + `"gpuCount":2,"memory":"163118Mi","nvlinkGroup":"` + quad0 + `","productName":"NVIDIA H100 80GB HBM3","resource.kubernetes.io/numaNode":1,"type":"nvlink-group"}`,
		quad0: `{` + common + `"gpuCount":4,"memory":"326236Mi","nvlinkGroup":"` + quad0 + `","productName":"NVIDIA H100 80GB HBM3","type":"nvlink-group"}`,
	} {
		if diff := cmp.Diff(want, text[name]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestBuild_Groups_StayWithinSizeBudget holds the budget: 28 KB for a node of eight GPUs that can be cut, what their devices take of the
// groups' counters included.
func TestBuild_Groups_StayWithinSizeBudget(t *testing.T) {
	size := func(s gpu.Snapshot) int {
		pool, _ := resourceslices.Build(s, nil, resourceslices.Options{Node: "n1", Taints: true, SharedDevices: true, Counters: true, Sharing: shareable.Sharing})
		data, err := json.Marshal(pool.Slices)
		if err != nil {
			t.Fatal(err)
		}
		if len(pool.Slices) > 12 {
			t.Errorf("%d slices, the budget is 12", len(pool.Slices))
		}
		return len(data)
	}
	apart := hgx(8, layouttest.H100())
	for i := range apart.GPUs {
		apart.GPUs[i].Links = nil
	}
	if more := size(hgx(8, layouttest.H100())) - size(apart); more > 28<<10 {
		t.Errorf("groups add %d bytes of JSON", more)
	} else {
		t.Logf("groups add %d bytes of JSON", more)
	}
}
