// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"path/filepath"
	"slices"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/pkg/plan"
)

// Container paths of an MPS daemon's directories. The first is CUDA's default, so a process that lost its environment
// still finds the daemon.
const (
	containerPipe     = "/tmp/nvidia-mps"
	containerShm      = "/dev/shm"
	containerTopology = "/run/nvidia/nccl-topology.xml"
)

// Environment of containers. Names without DRA belong to CUDA and NCCL.
const (
	envStrategy       = "NVIDIA_DRA_SHARING_STRATEGY"
	envShare          = "NVIDIA_DRA_SHARE_MEMORY_MIB"
	envPipe           = "CUDA_MPS_PIPE_DIRECTORY"
	envMemory         = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	envThreads        = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	envVisibleDevices = "CUDA_VISIBLE_DEVICES"
	envTopologyFile   = "NCCL_TOPO_FILE"
)

// DeviceEdits adds the claim's parts to a GPU's edits: its share, the MPS daemon and the topology of the request's
// GPUs. The daemon's directory is below mpsDir; topologyFile is the node's path of the file for NCCL.
func DeviceEdits(edits specs.ContainerEdits, d plan.Device, mpsDir, topologyFile string) specs.ContainerEdits {
	if d.Admin {
		return edits
	}
	edits.Env, edits.Mounts = slices.Clone(edits.Env), slices.Clone(edits.Mounts)
	env := func(name, format string, args ...any) {
		edits.Env = append(edits.Env, name+"="+fmt.Sprintf(format, args...))
	}
	mount := func(host, container, access string) {
		edits.Mounts = append(edits.Mounts,
			&specs.Mount{HostPath: host, ContainerPath: container, Options: []string{access, "nosuid", "nodev", "bind"}})
	}
	if d.Sharing.Strategy != "" {
		env(envStrategy, "%s", d.Sharing.Strategy)
	}
	if d.Partial() {
		env(envShare, "%d", d.Share.UsableBytes>>20)
	}
	if d.MPS() {
		env(envPipe, "%s", containerPipe)
		if limit := d.Sharing.MemoryLimit; limit != nil {
			env(envMemory, "0=%dM", *limit>>20)
		}
		if d.Sharing.ActiveThreadPercentage > 0 {
			env(envThreads, "%d", d.Sharing.ActiveThreadPercentage)
		}
		mount(filepath.Join(mpsDir, d.Name, "pipe"), containerPipe, "rw")
		mount(filepath.Join(mpsDir, d.Name, "shm"), containerShm, "rw")
	}
	if d.TopologyEnv.VisibleDevices != "" {
		env(envVisibleDevices, "%s", d.TopologyEnv.VisibleDevices)
	}
	if d.TopologyEnv.NCCLTopology != "" {
		env(envTopologyFile, "%s", containerTopology)
		mount(topologyFile, containerTopology, "ro")
	}
	return edits
}
