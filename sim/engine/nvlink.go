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
	// Peer is the GPU at the other end. It is nil for a switch, whose address this driver does not report.
	Peer *GPU
}

// RemoteBusID is the PCI address of the other end in NVML's format, empty for a switch.
func (l NVLink) RemoteBusID() string {
	if l.Peer == nil {
		return ""
	}
	return l.Peer.BusID()
}

// NVLinks returns the connected links of a GPU, ordered by index. A link is down if either end has it down.
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

// LinkErrorsOf returns the number of errors of an NVLink.
func (g *GPU) LinkErrorsOf(link int) uint64 {
	if link < 0 || link >= len(g.LinkErrors) {
		return 0
	}
	return g.LinkErrors[link]
}

// Peers reports whether two GPUs communicate over NVLink, through a direct link or through switches. A missing link
// to a switch isolates the GPU, as with the fabric manager's default setting. A GPU in MIG mode has no peers.
func (s *State) Peers(a, b *GPU) bool {
	if a.MIGEnabled || b.MIGEnabled || s.Profile.Board.NVLinks == 0 {
		return false
	}
	if len(s.Profile.Wires) == 0 {
		return len(a.LinksDown)+len(b.LinksDown) == 0 && a.Fabric == "" && b.Fabric == ""
	}
	return slices.ContainsFunc(s.NVLinks(a), func(l NVLink) bool { return l.Up && l.Peer.Address == b.Address })
}

// FabricFault is a reason for a failed registration with the fabric.
type FabricFault string

// The faults.
const (
	FabricPending FabricFault = "pending"
	FabricFailed  FabricFault = "failed"
)

// FabricOf returns a GPU's registration.
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
