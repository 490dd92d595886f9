// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/procfs"
	"gpu-dra-driver/pkg/node/kubeletplugin/podresources"
	"gpu-dra-driver/pkg/node/sampler"
	gpuusage "gpu-dra-driver/pkg/node/usage"
)

// ownProc is the /proc of this process's PID namespace.
const ownProc = "/proc"

// measurements measure GPUs and claims.
type measurements struct {
	usage   *podresources.Usage
	holders *podresources.Holders
	sampler *sampler.Sampler
	meter   *gpuusage.Meter
}

func newMeasurements(n *node, g *gpus, s *sharingSettings, c *claims, instance *host.Instance) *measurements {
	usage := podresources.NewUsage(g.kubelet, podresources.UsageOptions{
		ProcRoot: n.ProcRoot, Scans: g.scans, Root: c.root, Records: c.engine, Ignored: n.IgnoredProcesses,
	})
	o := sampler.Options{Library: g.library, Locks: g.sampler, Scans: g.scans, Records: c.engine.View(),
		Idle: n.MetricsIdle}
	if measured(n.Config) {
		o.ProcRoot, o.Mounts = processes(n, c)
	}
	samples := sampler.New(o)
	holders := podresources.NewHolders(usage, podresources.HoldersOptions{
		Records:    c.engine.View(),
		Sharing:    s,
		SysRoot:    n.SysRoot,
		AllowReset: n.AllowReset,
		Changed:    n.changed,
	})
	// Earlier versions kept the sums of GPU seconds in this file. Nothing reads one that stays.
	_ = n.machine.Remove("usage.remove", filepath.Join(stateDir(n.Config), "usage.json"))
	meter := gpuusage.NewMeter(c.engine.View(), g.scans, g.devicePlugins, samples, instance)
	return &measurements{usage, holders, samples, meter}
}

// measured reports whether metrics of GPUs are served.
func measured(c flags.Config) bool { return c.HTTPEndpoint != "" && c.MetricsPath != "" }

// processes returns where a sampler finds the claims of processes.
func processes(n *node, c *claims) (procRoot string, mounts *sampler.Mounts) {
	if !inNodesPIDNamespace(ownProc, n.ProcRoot) {
		klog.Background().Info("Warning: the plugin does not run in the node's PID namespace, so the GPUs' processes " +
			"are not measured; set hostPID in its pod")
		return "", nil
	}
	dir := dataDir(n.Config)
	own, err := procfs.Mounts(ownProc, uint32(os.Getpid()))
	state, links := filepath.EvalSymlinks(dir)
	if err = errors.Join(err, links); err == nil {
		state, err = filepath.Abs(state)
	}
	inside, relative := filepath.Rel(dir, c.specs.Mounted())
	if err = errors.Join(err, relative); err == nil {
		mounts, err = sampler.NewMounts(own, filepath.Join(state, inside), c.specs)
	}
	if err != nil {
		klog.Background().Error(err, "The claims of processes are not known; claims that share a GPU are not measured")
		return ownProc, nil
	}
	return ownProc, mounts
}

// inNodesPIDNamespace compares the namespace of this process with that of the node's first process. It is true for a
// node's /proc without processes, as simulated hardware has it. NVIDIA's driver lists processes with their PIDs in
// the caller's namespace, and leaves out those that have none there.
func inNodesPIDNamespace(own, node string) bool {
	mine, errMine := os.Readlink(filepath.Join(own, "self/ns/pid"))
	first, errFirst := os.Readlink(filepath.Join(node, "1/ns/pid"))
	return errMine != nil || errFirst != nil || mine == first
}
