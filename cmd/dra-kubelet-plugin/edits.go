// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// edits gives container edits only once the hook that they call is installed where the container runtime finds it.
type edits struct {
	root    *driverroot.Root
	install func(context.Context) error

	mu        sync.Mutex
	installed bool
}

func (e *edits) installHook(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.installed {
		return nil
	}
	if err := e.install(ctx); err != nil {
		return fmt.Errorf("%w; the image of the plugin should hold it at --nvidia-cdi-hook-path", err)
	}
	e.installed = true
	return nil
}

func (e *edits) Common(ctx context.Context) (specs.ContainerEdits, error) {
	if err := e.installHook(ctx); err != nil {
		return specs.ContainerEdits{}, err
	}
	return e.root.Common(ctx)
}

func (e *edits) GPU(ctx context.Context, device plan.Device) (specs.ContainerEdits, error) {
	return e.root.GPU(ctx, driverDevice(device))
}

// driverDevice is a planned device in the driver root's terms. A claim with admin access gets the GPU, not the partition.
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
