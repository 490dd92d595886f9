// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"errors"
	"fmt"
	"strings"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// board is a GPU of an open session.
type board struct {
	x       *Executor
	session nvml.Session
	uuid    string
	device  nvml.Device
	// offered are its profiles, which do not change and take a query each.
	offered []nvml.GPUInstanceProfile
}

// open takes the GPU's handle, which a switch of the mode invalidates.
func (g *board) open() (err error) {
	g.device, err = sessionpool.Device(g.session, g.uuid)
	return err
}

func (g *board) modeOn() (bool, error) {
	current, _, err := g.device.MIGMode()
	if err != nil {
		return false, fmt.Errorf("read the MIG mode: %w", err)
	}
	return current, nil
}

// instance is a GPU instance with what is in it.
type instance struct {
	nvml.GPUInstance
	info     nvml.GPUInstanceInfo
	profile  nvml.GPUInstanceProfile
	computes []nvml.ComputeInstance
	devices  []nvml.MIGDevice
}

func (i *instance) placement() gpu.Placement {
	return gpu.Placement{Start: i.info.Placement.Start, Size: i.info.Placement.Size}
}

func (i *instance) String() string {
	name := i.profile.Name
	if name == "" {
		name = fmt.Sprintf("profile %d", i.info.ProfileID)
	}
	return fmt.Sprintf("GPU instance %d (%s at slice %d)", i.info.ID, name, i.info.Placement.Start)
}

// whole says that the instance is usable as the device of its profile: one compute instance.
func (i *instance) whole() bool { return len(i.computes) == 1 && len(i.devices) == 1 }

// describe notes what the instance is called in this boot.
func (i *instance) describe(p *plan.Partition) {
	p.UUID, p.GPUInstance, p.ComputeInstance = i.devices[0].UUID, i.info.ID, i.devices[0].ComputeInstance
}

// has says whether one of its MIG devices is of that UUID.
func (i *instance) has(uuid string) bool {
	for _, d := range i.devices {
		if d.UUID == uuid {
			return true
		}
	}
	return false
}

// instances are all that are on the GPU now, whoever made them.
func (g *board) instances() ([]*instance, error) {
	profiles, err := g.profiles()
	if err != nil {
		return nil, err
	}
	list, err := g.device.GPUInstances()
	if err != nil {
		return nil, fmt.Errorf("list the GPU instances: %w", err)
	}
	var out []*instance
	for _, gi := range list {
		i := &instance{GPUInstance: gi}
		if i.info, err = gi.Info(); errors.Is(err, nvml.NotFound) {
			continue // Destroyed meanwhile.
		}
		if err == nil {
			i.computes, err = gi.ComputeInstances()
		}
		if err != nil {
			return nil, fmt.Errorf("read a GPU instance: %w", err)
		}
		for _, p := range profiles {
			if p.ID == i.info.ProfileID {
				i.profile = p
			}
		}
		out = append(out, i)
	}
	devices, err := g.device.MIGDevices()
	if err != nil {
		return nil, fmt.Errorf("list the MIG devices: %w", err)
	}
	for _, i := range out {
		for _, d := range devices {
			if d.GPUInstance == i.info.ID {
				i.devices = append(i.devices, d)
			}
		}
	}
	return out, nil
}

// sort finds what is exactly where a partition would be, and all that is in its place or a part of it.
func (g *board) sort(there []*instance, p plan.Partition) (exact *instance, obstacles []*instance, err error) {
	profile, err := g.profile(p.Profile)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range there {
		if i.placement().Overlaps(p.Placement()) {
			obstacles = append(obstacles, i)
		}
		if i.info.ProfileID == profile.ID && i.placement() == p.Placement() {
			exact = i
		}
	}
	return exact, obstacles, nil
}

func (g *board) profiles() ([]nvml.GPUInstanceProfile, error) {
	if g.offered == nil {
		profiles, err := g.device.GPUInstanceProfiles()
		if err != nil {
			return nil, fmt.Errorf("list the MIG profiles: %w", err)
		}
		g.offered = profiles
	}
	return g.offered, nil
}

func (g *board) profile(name string) (nvml.GPUInstanceProfile, error) {
	profiles, err := g.profiles()
	if err != nil {
		return nvml.GPUInstanceProfile{}, err
	}
	for _, p := range profiles {
		if p.Name == name {
			return p, nil
		}
	}
	return nvml.GPUInstanceProfile{}, fmt.Errorf("the GPU offers no MIG profile %s", name)
}

// at looks again at where a partition is or would be.
func (g *board) at(p plan.Partition) (exact *instance, obstacles []*instance, err error) {
	there, err := g.instances()
	if err != nil {
		return nil, nil, err
	}
	return g.sort(there, p)
}

// errVanished says that a partition which was noted is not there.
var errVanished = fmt.Errorf("the partition is gone: %w", plan.ErrVanished)

// find looks for a partition that was noted, and notes its instance IDs anew. One of which nothing was noted must be
// there as the device of its profile.
func (g *board) find(p *plan.Partition) error {
	on, err := g.modeOn()
	if err != nil {
		return err
	}
	if !on {
		return fmt.Errorf("%w: the MIG mode of its GPU is off", errVanished)
	}
	exact, _, err := g.at(*p)
	switch {
	case err != nil:
		return err
	case exact == nil:
		return fmt.Errorf("%w: no GPU instance of profile %s is at slice %d", errVanished, p.Profile, p.Start)
	case !exact.whole():
		return fmt.Errorf("%w: %s has %d compute instances", errVanished, exact, len(exact.computes))
	case p.UUID != "" && !exact.has(p.UUID):
		return fmt.Errorf("%w: %s is another, with UUID %s instead of %s", errVanished, exact, exact.devices[0].UUID, p.UUID)
	}
	exact.describe(p)
	return nil
}

// inTheWay refuses for what no claim's record owns.
func inTheWay(obstacles []*instance) error {
	var names []string
	for _, i := range obstacles {
		names = append(names, i.String())
	}
	return &busyError{
		what:   strings.Join(names, " and ") + ", made outside of this driver, in its place",
		remedy: "it is retried; destroy what is in the way (nvidia-smi mig -dci, then -dgi), or let the driver do so with --adopt-foreign-mig",
	}
}

// busyError is what holds up work on a GPU.
type busyError struct {
	what, remedy string
	cause        error
}

func (e *busyError) Error() string {
	if e.cause == nil {
		return e.what
	}
	return e.cause.Error() + ": " + e.what
}

func (e *busyError) Unwrap() error { return e.cause }
