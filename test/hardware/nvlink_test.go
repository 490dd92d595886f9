//go:build hardware

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"fmt"
	"strings"
	"testing"

	"gpu-dra-driver/pkg/gpu/topology"
)

// TestLinks_RealGPUs_Read prints the GPUs' links and groups. A link that only one end reports is a fault of the
// machine, or of this reading.
func TestLinks_RealGPUs_Read(t *testing.T) {
	_, s, ok := machine(t)
	if !ok {
		return
	}
	count := map[[2]string]int{}
	for _, g := range s.GPUs {
		to := map[string]int{}
		for _, l := range g.Links {
			to[strings.TrimSpace(string(l.Peer)+" "+l.PeerAddress)]++
			count[[2]string{g.PCIAddress, l.PeerAddress}]++
		}
		t.Logf("GPU %d at %s: %d NVLinks up, to %v; no peers: %v; fabric: %+v; below %v", g.Index, g.PCIAddress, len(g.Links), to, g.Unreachable, g.Fabric, g.Bridges)
	}
	for ends, n := range count {
		if _, isGPU := s.ByAddress(ends[1]); isGPU && count[[2]string{ends[1], ends[0]}] != n {
			t.Errorf("%s reports %d links to %s, which reports %d back", ends[0], n, ends[1], count[[2]string{ends[1], ends[0]}])
		}
	}
	for _, i := range topology.Find(s.GPUs) {
		var groups []string
		for _, g := range i.Groups {
			groups = append(groups, fmt.Sprint(g.Members))
		}
		t.Logf("island %v, on switches: %v; groups: %s", i.Members, i.Switched, strings.Join(groups, "; "))
	}
}
