// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"path/filepath"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/pkg/plan"
)

// What an MPS daemon's directory holds for its clients, and where they find it. The pipe directory is CUDA's default, so
// that a process which lost its environment still meets the daemon.
const (
	PipeDir       = "pipe"
	ShmDir        = "shm"
	ContainerPipe = "/tmp/nvidia-mps"
	ContainerShm  = "/dev/shm"
)

// Environment of a container with a share. The first two are NVIDIA's, of MPS clients.
const (
	EnvPipe     = "CUDA_MPS_PIPE_DIRECTORY"
	EnvMemory   = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	EnvThreads  = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	EnvStrategy = "NVIDIA_DRA_SHARING_STRATEGY"
	EnvShare    = "NVIDIA_DRA_SHARE_MEMORY_MIB"
)

// AddSharing adds to a device's edits what its share calls for: how it is shared and how much of it is the claim's, and the
// way to the MPS daemon, whose directory is below mpsDir.
func AddSharing(edits specs.ContainerEdits, d plan.Device, mpsDir string) specs.ContainerEdits {
	if d.Admin {
		return edits
	}
	env := append([]string(nil), edits.Env...)
	add := func(name, format string, args ...any) { env = append(env, name+"="+fmt.Sprintf(format, args...)) }
	if d.Sharing.Strategy != "" {
		add(EnvStrategy, "%s", d.Sharing.Strategy)
	}
	if d.Partial() {
		add(EnvShare, "%d", d.Share.UsableBytes>>20)
	}
	if d.MPS() {
		add(EnvPipe, "%s", ContainerPipe)
		if d.Sharing.MemoryLimit > 0 {
			add(EnvMemory, "0=%dM", d.Sharing.MemoryLimit>>20)
		}
		if d.Sharing.ActiveThreadPercentage > 0 {
			add(EnvThreads, "%d", d.Sharing.ActiveThreadPercentage)
		}
		dir := filepath.Join(mpsDir, d.Name)
		edits.Mounts = append(append([]*specs.Mount(nil), edits.Mounts...),
			&specs.Mount{HostPath: filepath.Join(dir, PipeDir), ContainerPath: ContainerPipe, Options: []string{"rw", "nosuid", "nodev", "bind"}},
			&specs.Mount{HostPath: filepath.Join(dir, ShmDir), ContainerPath: ContainerShm, Options: []string{"rw", "nosuid", "nodev", "bind"}})
	}
	edits.Env = env
	return edits
}
