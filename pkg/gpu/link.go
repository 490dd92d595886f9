// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package gpu

// Peer is the kind of device at the other end of an NVLink.
type Peer string

const (
	// PeerGPU is a directly connected GPU.
	PeerGPU Peer = "gpu"
	// PeerSwitch is an NVSwitch, which connects all GPUs on it.
	PeerSwitch Peer = "switch"
	// PeerOther is a CPU or a device that NVML does not name.
	PeerOther Peer = "other"
)

// Link is an NVLink that is up.
type Link struct {
	// Index is NVML's number of the link.
	Index int `json:"index"`
	// Version is the NVLink generation, from 1 for Pascal to 5 for Blackwell; 0 means unknown.
	Version int  `json:"version,omitempty"`
	Peer    Peer `json:"peer"`
	// PeerAddress is the PCI address of the other end; empty where NVML reports none, as for switches since Hopper.
	PeerAddress string `json:"peerAddress,omitempty"`
}

// Fabric is a GPU's membership in an NVLink fabric. The zero Fabric belongs to a GPU without a fabric.
type Fabric struct {
	State FabricState `json:"state,omitempty"`
	// ClusterUUID and CliqueID are equal for GPUs that reach each other over NVLink, across nodes too. The UUID is
	// empty if the fabric ends at the node's own board.
	ClusterUUID string `json:"clusterUUID,omitempty"`
	CliqueID    int    `json:"cliqueID,omitempty"`
}

// FabricState is the progress of a GPU's registration with its fabric.
type FabricState string

const (
	// FabricReady GPUs are registered.
	FabricReady FabricState = "ready"
	// FabricPending GPUs are not registered yet: the fabric manager is not running or has not finished.
	FabricPending FabricState = "pending"
	// FabricFailed GPUs were refused by the fabric manager.
	FabricFailed FabricState = "failed"
)

// Interconnect holds a GPU's connections. MIG mode hides them but does not change them.
type Interconnect struct {
	// Links are the NVLinks that are up, by index.
	Links []Link `json:"links,omitempty"`
	// Unreachable lists the node's GPUs without NVLink peer-to-peer access according to NVML, although links lead to
	// them: PCI addresses, sorted.
	Unreachable []string `json:"unreachable,omitempty"`
	Fabric      Fabric   `json:"fabric,omitzero"`
}
