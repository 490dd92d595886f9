// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/pkg/plan"
)

// Environment of a container that is told how its GPUs are wired. The names are CUDA's and NCCL's.
const (
	EnvVisibleDevices = "CUDA_VISIBLE_DEVICES"
	EnvTopologyFile   = "NCCL_TOPO_FILE"
	// ContainerTopology is where the container finds the file.
	ContainerTopology = "/run/nvidia/nccl-topology.xml"
)

// AddTopology adds to a device's edits what containers are told of its request's GPUs. The file for NCCL is at that path of the
// node.
func AddTopology(edits specs.ContainerEdits, d plan.Device, file string) specs.ContainerEdits {
	env := append([]string(nil), edits.Env...)
	if d.TopologyEnv.VisibleDevices != "" {
		env = append(env, EnvVisibleDevices+"="+d.TopologyEnv.VisibleDevices)
	}
	if d.TopologyEnv.NCCLTopology != "" {
		env = append(env, EnvTopologyFile+"="+ContainerTopology)
		edits.Mounts = append(append([]*specs.Mount(nil), edits.Mounts...),
			&specs.Mount{HostPath: file, ContainerPath: ContainerTopology, Options: []string{"ro", "nosuid", "nodev", "bind"}})
	}
	edits.Env = env
	return edits
}
