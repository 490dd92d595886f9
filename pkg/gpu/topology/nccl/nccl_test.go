// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nccl

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu"
)

func TestFile_GPUs_DescribesBridgesAndLinks(t *testing.T) {
	zero, one := 0, 1
	link := func(to string) gpu.Link { return gpu.Link{Peer: gpu.PeerGPU, PeerAddress: to} }
	a := gpu.GPU{PCIAddress: "0000:1b:00.0", NUMANode: &zero, Bridges: []string{"0000:15:01.0", "0000:16:00.0"},
		ComputeCapability: gpu.Version{Major: 7}, Interconnect: gpu.Interconnect{Links: []gpu.Link{link("0000:1c:00.0"), link("0000:b1:00.0"), link("0000:1c:00.0"), link("0000:ff:00.0")}}}
	b := gpu.GPU{PCIAddress: "0000:1c:00.0", NUMANode: &zero, Bridges: []string{"0000:15:01.0", "0000:16:01.0"},
		ComputeCapability: gpu.Version{Major: 7}, Interconnect: gpu.Interconnect{Links: []gpu.Link{link("0000:1b:00.0"), link("0000:1b:00.0")}}}
	c := gpu.GPU{PCIAddress: "0000:b1:00.0", NUMANode: &one, ComputeCapability: gpu.Version{Major: 9},
		Interconnect: gpu.Interconnect{Links: []gpu.Link{{Peer: gpu.PeerSwitch}, {Peer: gpu.PeerSwitch}, {Peer: gpu.PeerSwitch, PeerAddress: "0000:c4:00.0"}, {Peer: gpu.PeerOther}}}}
	const want = `<system version="1">
  <cpu numaid="0">
    <pci busid="0000:15:01.0" class="0x060400">
      <pci busid="0000:16:00.0" class="0x060400">
        <pci busid="0000:1b:00.0" class="0x030200">
          <gpu sm="70">
            <nvlink target="0000:1c:00.0" count="2" tclass="0x030200"></nvlink>
            <nvlink target="0000:b1:00.0" count="1" tclass="0x030200"></nvlink>
          </gpu>
        </pci>
      </pci>
      <pci busid="0000:16:01.0" class="0x060400">
        <pci busid="0000:1c:00.0" class="0x030200">
          <gpu sm="70">
            <nvlink target="0000:1b:00.0" count="2" tclass="0x030200"></nvlink>
          </gpu>
        </pci>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:b1:00.0" class="0x030200">
      <gpu sm="90">
        <nvlink target="0000:c4:00.0" count="1" tclass="0x068000"></nvlink>
        <nvlink target="fffffff:ffff:ff" count="2" tclass="0x068000"></nvlink>
      </gpu>
    </pci>
  </cpu>
</system>
`
	if diff := cmp.Diff(want, File([]gpu.GPU{c, a, b})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A GPU of which nothing is known has its place all the same; NCCL looks up the rest.
	if diff := cmp.Diff("<system version=\"1\">\n  <cpu numaid=\"-1\">\n    <pci busid=\"0000:01:00.0\" class=\"0x030200\">\n      <gpu></gpu>\n    </pci>\n  </cpu>\n</system>\n",
		File([]gpu.GPU{{PCIAddress: "0000:01:00.0"}})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
