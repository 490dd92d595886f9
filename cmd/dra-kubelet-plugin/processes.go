// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/procfs"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/gpu/sampler"
)

// ownProc is the /proc of this process's PID namespace.
const ownProc = "/proc"

// addProcesses makes a sampler find the claims of processes.
func addProcesses(o *sampler.Options, c flags.Config, specs *store.Store) {
	if !inNodesPIDNamespace(ownProc, c.ProcRoot) {
		klog.Background().Info("Warning: the plugin does not run in the node's PID namespace, so the GPUs' processes are not measured; set hostPID in its pod")
		return
	}
	o.ProcRoot = ownProc
	own, err := procfs.Mounts(ownProc, uint32(os.Getpid()))
	state, links := filepath.EvalSymlinks(dataDir(c))
	if err = errors.Join(err, links); err == nil {
		state, err = filepath.Abs(state)
	}
	inside, relative := filepath.Rel(dataDir(c), specs.Mounted())
	if err = errors.Join(err, relative); err != nil {
		klog.Background().Error(err, "The claims of processes are not known; claims that share a GPU are not measured")
		return
	}
	o.Mounted = sampler.Mounted(own, filepath.Join(state, inside), specs.ParseMetadataName)
}

// inNodesPIDNamespace compares the namespace of this process with that of the node's first process. It is true for a
// node's /proc without processes, which is that of simulated hardware. NVIDIA's driver lists processes with their PIDs in
// the caller's namespace, and leaves out those that have none there.
func inNodesPIDNamespace(own, node string) bool {
	mine, errMine := os.Readlink(filepath.Join(own, "self/ns/pid"))
	first, errFirst := os.Readlink(filepath.Join(node, "1/ns/pid"))
	return errMine != nil || errFirst != nil || mine == first
}
