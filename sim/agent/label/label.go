// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package label names the labels and annotations of the simulator.
package label

// Users write Board and GPUs. The agent writes Present and Hardware while the node has a board.
const (
	// Board is the name of a profile, or None.
	Board = "gpu-simulator/board"
	// GPUs is the number of GPUs on the board.
	GPUs    = "gpu-simulator/gpus"
	Present = "gpu-simulator/present"
	// Hardware is the label of node feature discovery for NVIDIA's hardware, by which charts select nodes.
	Hardware = "feature.node.kubernetes.io/pci-10de.present"

	// None is the value of Board for a node without a simulated board.
	None = "none"

	// Utilization is the annotation of a pod with the utilization of each of its devices, in percent.
	Utilization = "gpu-simulator/utilization"
)
