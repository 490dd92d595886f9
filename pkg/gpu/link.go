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

// Fabric is a GPU's place in an NVLink fabric. The zero Fabric is of a GPU that registers with none.
type Fabric struct {
	State FabricState `json:"state,omitempty"`
	// ClusterUUID and CliqueID are the same for GPUs that reach each other over NVLink, also those of other nodes. The UUID is
	// empty where the fabric ends at the node's own board.
	ClusterUUID string `json:"clusterUUID,omitempty"`
	CliqueID    int    `json:"cliqueID,omitempty"`
}

// FabricState is how far a GPU's registration with its fabric has come.
type FabricState string

const (
	// FabricReady GPUs are registered.
	FabricReady FabricState = "ready"
	// FabricPending GPUs are not yet: the fabric manager is not running, or not done.
	FabricPending FabricState = "pending"
	// FabricFailed GPUs were refused.
	FabricFailed FabricState = "failed"
)

// Interconnect is how a GPU is connected, which cannot be read while it is in MIG mode and is the same afterwards.
type Interconnect struct {
	// Links are the NVLinks that are up, in order of their index.
	Links []Link `json:"links,omitempty"`
	// Unreachable are, in order, the PCI addresses of the node's GPUs that NVML says it has no NVLink peer-to-peer with,
	// though its links suggest it.
	Unreachable []string `json:"unreachable,omitempty"`
	Fabric      Fabric   `json:"fabric,omitzero"`
}
