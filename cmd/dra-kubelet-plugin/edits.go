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

// edits returns container edits after it has installed their hook where the container runtime finds it.
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
		return fmt.Errorf("%w; set --nvidia-cdi-hook-path to the hook in the plugin's image", err)
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
