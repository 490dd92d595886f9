// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
)

// create creates a partition in the place that Admit found free. If another partition was created there meanwhile, NVML
// returns an error and createdDespite names the other one.
func (x *Executor) create(ctx context.Context, g *openGPU, p *plan.Partition) error {
	if x.o.AdoptExternal {
		_, obstacles, err := g.at(*p)
		if err != nil {
			return unchanged(err)
		}
		for _, i := range obstacles {
			if err := x.remove(ctx, g, i); err != nil {
				return unchanged(err)
			}
		}
	}
	if ctx.Err() != nil {
		return unchanged(context.Cause(ctx))
	}
	profile, err := g.profile(p.Profile)
	if err != nil {
		return unchanged(err)
	}
	gi, err := g.CreateGPUInstance(profile.ID, nvml.MIGPlacement{Start: p.Start, Size: p.Size})
	made := &instance{GPUInstance: gi}
	if err != nil {
		if made, err = g.createdDespite(*p, err); made == nil {
			return err
		}
	}
	err = x.addComputeInstance(g, made, profile, p)
	if err == nil {
		return nil
	}
	exact, _, lookErr := g.at(*p)
	if lookErr == nil && exact != nil {
		lookErr = x.remove(ctx, g, exact)
	}
	if lookErr != nil {
		return errors.Join(err, fmt.Errorf("undo: %w", lookErr))
	}
	return unchanged(err)
}

// createdDespite looks for the instance after a failed creation, because a call that timed out can still have created
// it. If there is none, failure explains why.
func (g *openGPU) createdDespite(p plan.Partition, cause error) (made *instance, failure error) {
	cause = fmt.Errorf("create a GPU instance of profile %s at slice %d: %w", p.Profile, p.Start, cause)
	exact, obstacles, err := g.at(p)
	switch {
	case err != nil:
		return nil, errors.Join(cause, err)
	case exact != nil && !errors.Is(cause, nvml.InsufficientResources):
		return exact, nil
	case len(obstacles) > 0:
		return nil, unchanged(obstructed(obstacles))
	}
	return nil, unchanged(cause)
}

// addComputeInstance creates the compute instance that takes all of a GPU instance, unless it exists, and notes the MIG
// device.
func (x *Executor) addComputeInstance(
	g *openGPU, i *instance, profile nvml.GPUInstanceProfile, p *plan.Partition,
) (err error) {
	if len(i.computes) == 0 {
		profiles, listErr := i.ComputeInstanceProfiles()
		if listErr != nil {
			return fmt.Errorf("list the compute instance profiles: %w", listErr)
		}
		// The profile with all slices of the GPU instance takes all of it.
		full := slices.IndexFunc(profiles, func(p nvml.ComputeInstanceProfile) bool {
			return p.Slices == profile.Slices && p.Instances > 0
		})
		if full < 0 {
			return fmt.Errorf("no compute instance profile has the %d slices of %s", profile.Slices, profile.Name)
		}
		if _, err = i.CreateComputeInstance(profiles[full].ID); err != nil {
			err = fmt.Errorf("create a compute instance: %w", err)
		}
	}
	// NVML may have created it despite the error.
	info, infoErr := i.Info()
	if infoErr != nil {
		return errors.Join(err, fmt.Errorf("read the GPU instance: %w", infoErr))
	}
	i.info = info
	var findErr error
	if i.devices, findErr = g.devicesOf(i, 2); findErr != nil {
		return errors.Join(err, findErr)
	}
	if len(i.devices) != 1 {
		return errors.Join(err, fmt.Errorf("%s has %d MIG devices instead of one", i, len(i.devices)))
	}
	i.note(p)
	return nil
}

// verify checks a recorded partition and changes nothing on the GPU, because containers may run on it. It marks the
// partition as lost if it is gone, has no compute instance, or was created again by a co-tenant.
func (x *Executor) verify(g *openGPU, p *plan.Partition, tenants []plan.CoTenant) error {
	exact, obstacles, err := g.ours(*p)
	switch {
	case err != nil:
		return err
	case exact != nil && exact.complete() && exact.hasDevice(p.UUID):
		exact.note(p)
		return nil
	case len(obstacles) == 0, exact != nil && len(exact.computes) == 0 && exact.info.ID == p.GPUInstance,
		exact != nil && slices.ContainsFunc(tenants, func(t plan.CoTenant) bool {
			return t.Committed && exact.hasDevice(t.Device.Partition.UUID)
		}):
		p.Lost, p.UUID = true, ""
		return marked{errGone, plan.ErrDestroyed}
	}
	return errors.Join(errGone, obstructed(obstacles))
}

// recreate creates a lost partition, or its missing compute instance.
func (x *Executor) recreate(ctx context.Context, g *openGPU, p *plan.Partition) error {
	exact, obstacles, err := g.at(*p)
	switch {
	case err != nil:
		return err
	case len(obstacles) == 0:
		err = x.create(ctx, g, p)
	case exact != nil && len(exact.computes) <= 1:
		err = x.addComputeInstance(g, exact, exact.profile, p)
	default:
		return obstructed(obstacles)
	}
	if err == nil {
		p.Lost = false
	}
	return err
}

// marked is an error with the resulting state of the step.
type marked struct {
	error
	mark error
}

func (m marked) Is(target error) bool { return target == m.mark }
func (m marked) Unwrap() error        { return m.error }

func unchanged(err error) error { return marked{err, plan.ErrUnchanged} }

// destroy destroys a partition if it exists and has the recorded UUID. It keeps another partition in its place.
func (x *Executor) destroy(ctx context.Context, g *openGPU, p plan.Partition) (destroyed bool, err error) {
	on, _, err := g.mode()
	if nvml.Unavailable(err) || err == nil && !on {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	exact, _, err := g.ours(p)
	if err != nil || exact == nil || !owned(exact, p) {
		return false, err
	}
	err = x.remove(ctx, g, exact)
	if !nvml.Vanished(err) {
		return err == nil, err
	}
	if exact, _, again := g.at(p); again != nil || exact != nil && owned(exact, p) {
		return false, errors.Join(err, again) // The list shows it still.
	}
	return false, nil
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

// remove destroys an instance and its compute instances. It retries while a process uses it, or while NVML lists it
// after its destruction. The error is Vanished if it was destroyed meanwhile.
func (x *Executor) remove(ctx context.Context, g *openGPU, i *instance) error {
	return x.retryInUse(ctx, x.o.Timeout, func() error {
		if err := i.refresh(g); err != nil {
			return err
		}
		computes, err := i.ComputeInstances()
		if err != nil {
			return fmt.Errorf("list the compute instances of %s: %w", i, err)
		}
		for _, ci := range computes {
			if err := ci.Destroy(); err != nil && !nvml.Vanished(err) {
				return g.inUse(fmt.Errorf("destroy the compute instance of %s: %w", i, err), i.info.ID)
			}
		}
		if err := i.Destroy(); err != nil {
			return g.inUse(fmt.Errorf("destroy %s: %w", i, err), i.info.ID)
		}
		return g.absent(i)
	})
}

// absent returns an error if NVML still has an instance whose destruction it reported as a success.
func (g *openGPU) absent(i *instance) error {
	err := i.refresh(g)
	switch {
	case nvml.Vanished(err):
		return nil
	case err != nil:
		return fmt.Errorf("after the destruction of %s: %w", i, err)
	}
	return marked{&executor.Busy{
		Cause: fmt.Errorf("destroy %s", i), Obstacle: "NVML reports success, and still has it", Remedy: stuckRemedy,
	}, errStuck}
}

// retryInUse repeats do at growing intervals while it returns "in use": an ended process releases the GPU with a delay.
func (x *Executor) retryInUse(ctx context.Context, limit time.Duration, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := do()
		if !errors.Is(err, nvml.InUse) && !errors.Is(err, errStuck) {
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

// inUse adds the processes on the GPU, or on one GPU instance, to an "in use" error. The error is errStuck if NVML
// lists no process on the instance.
func (g *openGPU) inUse(err error, gpuInstance int) error {
	if !errors.Is(err, nvml.InUse) {
		return err
	}
	busy := &executor.Busy{
		Cause: err, Obstacle: "NVML lists no process on it; a monitoring agent may use it",
		Remedy: "the operation is retried; if it persists, end those processes or stop the monitoring agent on the GPU",
	}
	names, listErr := g.processes(gpuInstance)
	switch {
	case len(names) > 0:
		busy.Obstacle = "it is in use by " + strings.Join(names, ", ")
	case gpuInstance != anyInstance && listErr == nil:
		return marked{busy, errStuck}
	}
	return busy
}

func (g *openGPU) processes(gpuInstance int) (names []string, err error) {
	processes, err := g.Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		if gpuInstance == anyInstance || p.GPUInstance == gpuInstance {
			names = append(names, executor.ProcessName(g.x.host, g.x.o.ProcRoot, p.PID))
		}
	}
	return names, nil
}
