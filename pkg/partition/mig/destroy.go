// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/executor"
	"gpu-dra-driver/pkg/plan"
)

// destroy destroys a partition if it exists and has the recorded UUID. It keeps another partition in its place.
func (x *Executor) destroy(ctx context.Context, g *openGPU, p plan.Partition) error {
	on, err := g.modeOn()
	if nvml.Unavailable(err) || err == nil && !on {
		return nil
	}
	if err != nil {
		return err
	}
	exact, _, err := g.at(p)
	if err != nil || exact == nil || !owned(exact, p) {
		return err
	}
	return x.remove(ctx, g, exact)
}

// owned reports whether an instance in a partition's place is that partition or its remains after a crash. Without a
// recorded UUID only an intent exists, which creates at most one compute instance.
func owned(i *instance, p plan.Partition) bool {
	switch {
	case p.UUID == "":
		return len(i.computes) <= 1
	case len(i.computes) == 0:
		return i.info.ID == p.GPUInstance
	}
	return i.hasDevice(p.UUID)
}

// remove destroys an instance and its compute instances. It retries while a process uses it.
func (x *Executor) remove(ctx context.Context, g *openGPU, i *instance) error {
	return x.retryInUse(ctx, x.o.Timeout, func() error {
		computes, err := i.ComputeInstances()
		if errors.Is(err, nvml.NotFound) || errors.Is(err, nvml.InvalidArgument) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list the compute instances of %s: %w", i, err)
		}
		for _, ci := range computes {
			if err := ci.Destroy(); err != nil && !errors.Is(err, nvml.NotFound) {
				return g.inUse(fmt.Errorf("destroy the compute instance of %s: %w", i, err), i.info.ID)
			}
		}
		if err := i.Destroy(); err != nil && !errors.Is(err, nvml.NotFound) {
			return g.inUse(fmt.Errorf("destroy %s: %w", i, err), i.info.ID)
		}
		return nil
	})
}

// retryInUse repeats do at growing intervals while it returns "in use": an ended process releases the GPU with a delay.
func (x *Executor) retryInUse(ctx context.Context, limit time.Duration, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := do()
		if !errors.Is(err, nvml.InUse) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// anyInstance selects the whole GPU.
const anyInstance = -1

// inUse adds the processes on the GPU, or on one GPU instance, to an "in use" error.
func (g *openGPU) inUse(err error, gpuInstance int) error {
	if !errors.Is(err, nvml.InUse) {
		return err
	}
	obstacle := "NVML lists no process on it; a monitoring agent may use it"
	if names := g.processes(gpuInstance); len(names) > 0 {
		obstacle = "it is in use by " + strings.Join(names, ", ")
	}
	return &executor.Busy{
		Cause: err, Obstacle: obstacle,
		Remedy: "the operation is retried; if it persists, end those processes or stop the monitoring agent on the GPU",
	}
}

func (g *openGPU) processes(gpuInstance int) []string {
	processes, err := g.device.Processes()
	if err != nil {
		return nil
	}
	var names []string
	for _, p := range processes {
		if gpuInstance == anyInstance || p.GPUInstance == gpuInstance {
			names = append(names, executor.ProcessName(g.x.host, g.x.o.ProcRoot, p.PID))
		}
	}
	return names
}
