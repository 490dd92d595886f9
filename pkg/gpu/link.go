// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

// Peer is the kind of what is at the other end of an NVLink.
type Peer string

const (
	// PeerGPU is another GPU, wired directly.
	PeerGPU Peer = "gpu"
	// PeerSwitch is an NVSwitch, through which every GPU on it is reached.
	PeerSwitch Peer = "switch"
	// PeerOther is a CPU, or what NVML has no name for.
	PeerOther Peer = "other"
)

// Link is an NVLink of a GPU that is up.
type Link struct {
	// Index is NVML's number of the link.
	Index int `json:"index"`
	// Version is the NVLink generation, 1 for Pascal to 5 for Blackwell; 0 is unknown.
	Version int  `json:"version,omitempty"`
	Peer    Peer `json:"peer"`
	// PeerAddress is the PCI address of the other end, empty where NVML does not tell it: from Hopper on it does not of switches.
	PeerAddress string `json:"peerAddress,omitempty"`
}
