// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/computepolicy"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/timeslice"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/mig"
)

// executors carry out the steps of plans.
type executors struct {
	mig       *mig.Executor
	mps       *mps.Executor
	timeSlice *timeslice.Executor
}

// newExecutors opens the records of the settings that executors change. The MIG executor notes its
// switches of MIG modes.
func newExecutors(
	machine *host.Host, library nvml.Library, switches mig.Switches, snapshot func() gpu.Snapshot, report func(error), c flags.Config,
) (*executors, error) {
	records := map[string]*record.GPUs{}
	for _, setting := range []string{mig.Setting, mps.Setting, timeslice.Setting} {
		var err error
		if records[setting], err = record.OpenGPUs(machine, filepath.Join(stateDir(c), "gpus"), setting); err != nil {
			return nil, fmt.Errorf("open the plugin's state: %w", err)
		}
	}
	sessions := sessionpool.New(library, sessionpool.Listed(c.ProcRoot), report)
	return &executors{
		mig: mig.New(machine, sessions, records[mig.Setting], mig.Options{
			AllowReset: c.AllowGPUReset, AdoptForeign: c.AdoptForeignMIG, Switches: switches, ProcRoot: c.ProcRoot,
			Snapshot: snapshot,
		}),
		mps:       mps.New(machine, sessions, mpsd.NewClient(filepath.Join(mpsDir(c), mpsd.SocketName)), records[mps.Setting], c.ProcRoot),
		timeSlice: timeslice.New(computepolicy.SMI{Root: c.ContainerDriverRoot}, records[timeslice.Setting]),
	}, nil
}

// allSwitches notifies several of a switch of a MIG mode.
type allSwitches []mig.Switches

func (a allSwitches) Lock(address string) {
	for _, one := range a {
		one.Lock(address)
	}
}

func (a allSwitches) Unlock(address string) {
	for _, one := range a {
		one.Unlock(address)
	}
}

// dataDir holds the plugin's socket, its hook and its state.
func dataDir(c flags.Config) string { return filepath.Join(c.KubeletPluginsDir, c.DriverName) }

func stateDir(c flags.Config) string { return filepath.Join(dataDir(c), "state") }

// mpsDir is the directory of MPS daemons. It is set even if the node no longer has MPS, so that claims of earlier
// configurations can be unprepared.
func mpsDir(c flags.Config) string {
	if c.MPSDir != "" {
		return c.MPSDir
	}
	return filepath.Join(dataDir(c), "mps")
}

// noMPS returns why the node has no MPS. It is empty if the node has MPS.
func noMPS(c flags.Config) string {
	if c.MPSDir != "" {
		return ""
	}
	return "MPS is not enabled on this node (--mps-dir is empty; chart value mps.enabled)"
}

// hook is the hook of container edits. It is separate from them: while it cannot be installed, for example because the
// disk is full, specs are still compared with the kernel.
type hook struct {
	install func(context.Context) error

	mu        sync.Mutex
	installed bool
}

// Install installs the hook, once, where the container runtime finds it.
func (h *hook) Install(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.installed {
		return nil
	}
	if err := h.install(ctx); err != nil {
		return fmt.Errorf("%w; set --nvidia-cdi-hook-path to the hook in the plugin's image", err)
	}
	h.installed = true
	return nil
}

// edits returns container edits for planned devices.
type edits struct{ *driverroot.Root }

func (e edits) GPU(ctx context.Context, device plan.Device) (specs.ContainerEdits, error) {
	return e.Root.GPU(ctx, driverDevice(device))
}

// driverDevice converts a planned device to the driver root's type. A claim with admin access gets the GPU instead of
// the partition.
func driverDevice(d plan.Device) driverroot.Device {
	out := driverroot.Device{
		Name: d.Name, PCIAddress: d.PCIAddress, UUID: d.UUID, Minor: d.Minor, Switches: d.Kind == gpu.KindGroup,
	}
	if d.Kind == gpu.KindMIG && !d.Admin {
		p := d.Partition
		out.Partition = &driverroot.Partition{UUID: p.UUID, GPUInstance: p.GPUInstance, ComputeInstance: p.ComputeInstance}
	}
	return out
}
