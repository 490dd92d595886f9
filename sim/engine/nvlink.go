// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"

	"gpu-dra-driver/internal/nvml"
)

// NVLink is a link of a GPU, up or down.
type NVLink struct {
	Up      bool
	Version int
	Remote  nvml.RemoteDevice
	// Peer is the GPU at the other end, nil of a switch, whose address this driver does not tell.
	Peer *GPU
}

// RemoteBusID is NVML's spelling of the other end's address, empty of a switch.
func (l NVLink) RemoteBusID() string {
	if l.Peer == nil {
		return ""
	}
	return l.Peer.BusID()
}

// NVLinks are all of a GPU that lead somewhere, in order of their index. A link is down where either end has it down.
func (s *State) NVLinks(g *GPU) []NVLink {
	b := s.Profile.Board
	if len(s.Profile.Wires) == 0 {
		out := make([]NVLink, b.NVLinks)
		for i := range out {
			out[i] = NVLink{Up: !slices.Contains(g.LinksDown, i), Version: b.NVLinkVersion, Remote: nvml.RemoteSwitch}
		}
		return out
	}
	// The links of each GPU are numbered in the order of the wires.
	var out []NVLink
	used := map[string]int{}
	for _, w := range s.Profile.Wires {
		a, z := &s.GPUs[w.A], &s.GPUs[w.B]
		for range w.Links {
			mine, theirs, peer := used[a.Address], used[z.Address], z
			used[a.Address]++
			used[z.Address]++
			switch g.Address {
			case a.Address:
			case z.Address:
				mine, theirs, peer = theirs, mine, a
			default:
				continue
			}
			out = append(out, NVLink{
				Up:      !slices.Contains(g.LinksDown, mine) && !slices.Contains(peer.LinksDown, theirs) && !peer.Lost && !peer.OffBus,
				Version: b.NVLinkVersion, Remote: nvml.RemoteGPU, Peer: peer,
			})
		}
	}
	return out
}

// Peers says whether two GPUs talk over NVLink: over a link between them; over switches as long as neither lacks a link,
// for then the fabric manager, as it is set by default, takes the GPU out. A GPU that is cut has no peers.
func (s *State) Peers(a, b *GPU) bool {
	if a.MIGEnabled || b.MIGEnabled || s.Profile.Board.NVLinks == 0 {
		return false
	}
	if len(s.Profile.Wires) == 0 {
		return len(a.LinksDown)+len(b.LinksDown) == 0 && a.Fabric == "" && b.Fabric == ""
	}
	return slices.ContainsFunc(s.NVLinks(a), func(l NVLink) bool { return l.Up && l.Peer.Address == b.Address })
}

// FabricFault is what keeps a GPU from its fabric.
type FabricFault string

// The faults.
const (
	FabricPending FabricFault = "pending"
	FabricFailed  FabricFault = "failed"
)

// FabricOf is a GPU's registration.
func (s *State) FabricOf(g *GPU) nvml.Fabric {
	var out nvml.Fabric
	switch {
	case !s.Profile.Board.Fabric:
		return out
	case g.Fabric == FabricPending:
		return nvml.Fabric{State: nvml.FabricInProgress}
	}
	out.State = nvml.FabricCompleted
	if g.Fabric == FabricFailed {
		out.Status = nvml.Unknown
		return out
	}
	if f := s.Profile.Fabric; f != nil {
		out.ClusterUUID, _ = f.Cluster() // A validated profile has one.
		out.CliqueID = f.CliqueID
	}
	return out
}
