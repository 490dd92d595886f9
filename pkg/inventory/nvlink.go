// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
)

// links reads the NVLinks that are up. A GPU in MIG mode has no peers, and what its links say then is not asked.
func (r *reader) links(d nvml.Device, g *gpu.GPU) {
	if g.MIG.Enabled {
		return
	}
	links, err := d.NVLinks()
	if !r.may("the NVLinks", err) {
		return
	}
	for _, l := range links {
		one := gpu.Link{Index: l.Index, Version: l.Version, Peer: gpu.PeerOther}
		switch l.Remote {
		case nvml.RemoteGPU:
			one.Peer = gpu.PeerGPU
		case nvml.RemoteSwitch:
			one.Peer = gpu.PeerSwitch
		}
		if at, err := gpu.CanonicalAddress(l.RemoteBusID); err == nil {
			one.PeerAddress = at
		}
		g.Links = append(g.Links, one)
	}
}
