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
	// RemoteBusID is empty of a switch, whose address this driver does not tell.
	RemoteBusID string
}

// NVLinks are all of a GPU, in order of their index.
func (s *State) NVLinks(g *GPU) []NVLink {
	b := s.Profile.Board
	out := make([]NVLink, b.NVLinks)
	for i := range out {
		out[i] = NVLink{Up: !slices.Contains(g.LinksDown, i), Version: b.NVLinkVersion, Remote: nvml.RemoteSwitch}
	}
	return out
}
