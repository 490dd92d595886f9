// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"fmt"
	"slices"
	"strings"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

type openGPU struct {
	*sessionpool.GPU
	x *Executor
}

func (g *openGPU) mode() (current, pending bool, err error) {
	if current, pending, err = g.MIGMode(); err != nil {
		err = fmt.Errorf("read the MIG mode: %w", err)
	}
	return current, pending, err
}

// instance is a GPU instance with its compute instances and MIG devices.
type instance struct {
	nvml.GPUInstance
	info     nvml.GPUInstanceInfo
	profile  nvml.GPUInstanceProfile
	computes []nvml.ComputeInstance
	devices  []nvml.MIGDevice
}

func (i *instance) placement() gpu.Placement { return gpu.Placement(i.info.Placement) }

func (i *instance) String() string {
	name := i.profile.Name
	if name == "" {
		name = fmt.Sprintf("profile %d", i.info.ProfileID)
	}
	return fmt.Sprintf("GPU instance %d (%s at slice %d)", i.info.ID, name, i.info.Placement.Start)
}

// refresh gets the handle again, because the instance may have been destroyed through it with no effect. The error is
// Vanished if the instance does not exist.
func (i *instance) refresh(g *openGPU) (err error) {
	i.GPUInstance, err = g.GPUInstance(i.info.ID)
	if err == nil {
		var now nvml.GPUInstanceInfo
		if now, err = i.Info(); err == nil && now != i.info {
			err = nvml.NotFound // Another one has its ID.
		}
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", i, err)
	}
	return nil
}

// complete reports whether CUDA can use the instance: it has one compute instance and one device.
func (i *instance) complete() bool { return len(i.computes) == 1 && len(i.devices) == 1 }

// note copies the instance's IDs and UUID of this boot into a partition.
func (i *instance) note(p *plan.Partition) {
	p.UUID, p.GPUInstance, p.ComputeInstance = i.devices[0].UUID, i.info.ID, i.devices[0].ComputeInstance
}

func (i *instance) hasDevice(uuid string) bool {
	return slices.ContainsFunc(i.devices, func(d nvml.MIGDevice) bool { return d.UUID == uuid })
}

// instances lists all GPU instances, including external ones, without their compute instances. One can vanish between
// its listing and its query. A second list shows whether it did: if it is still there, the query failed.
func (g *openGPU) instances() ([]*instance, error) { return again(g.listInstances) }

// again repeats a list in which an instance vanished.
func again[T any](list func() (T, error)) (T, error) {
	out, err := list()
	if nvml.Vanished(err) {
		out, err = list()
	}
	return out, err
}

func (g *openGPU) listInstances() ([]*instance, error) {
	list, err := g.GPUInstances()
	if err != nil {
		return nil, fmt.Errorf("list the GPU instances: %w", err)
	}
	var out []*instance
	for _, gi := range list {
		i, err := g.identify(gi)
		if err != nil {
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

// identify reads a GPU instance's place and profile.
func (g *openGPU) identify(gi nvml.GPUInstance) (*instance, error) {
	profiles, err := g.profiles()
	if err != nil {
		return nil, err
	}
	i := &instance{GPUInstance: gi}
	if i.info, err = gi.Info(); err != nil {
		return nil, fmt.Errorf("read a GPU instance: %w", err)
	}
	if n := slices.IndexFunc(profiles, func(p nvml.GPUInstanceProfile) bool {
		return p.ID == i.info.ProfileID
	}); n >= 0 {
		i.profile = profiles[n]
	}
	return i, nil
}

// errStale means that NVML lists other MIG devices than compute instances. Drivers list the devices once in a session,
// so that other processes' changes are missing. It has a code of NVML, because it says nothing of the partitions.
var errStale = fmt.Errorf("NVML's list of MIG devices is out of date: %w", nvml.Unknown)

// load reads an instance's compute instances and their devices.
func (g *openGPU) load(i *instance) (err error) {
	if i.computes, err = i.ComputeInstances(); err != nil {
		return fmt.Errorf("list the compute instances of %s: %w", i, err)
	}
	if i.devices, err = g.devicesOf(i, len(i.computes)); err != nil {
		return err
	}
	var listed, there []int
	for _, d := range i.devices {
		listed = append(listed, d.ComputeInstance)
	}
	for _, c := range i.computes {
		info, err := c.Info()
		if err != nil {
			return fmt.Errorf("read a compute instance of %s: %w", i, err)
		}
		there = append(there, info.ID)
	}
	if !slices.Equal(listed, there) {
		return fmt.Errorf("%w: %s has the compute instances %v, and it lists %v", errStale, i, there, listed)
	}
	return nil
}

func (g *openGPU) devicesOf(i *instance, count int) ([]nvml.MIGDevice, error) {
	devices, err := g.MIGDevicesOf(i.info.ID, count)
	if err != nil {
		err = fmt.Errorf("list the MIG devices of %s: %w", i, err)
	}
	return devices, err
}

// at returns the instance that matches a partition exactly, with its compute instances, and all instances that overlap
// its place. An instance whose profile the driver does not list any more matches by its place.
func (g *openGPU) at(p plan.Partition) (exact *instance, obstacles []*instance, err error) {
	obstacles, err = again(func() ([]*instance, error) {
		there, err := g.listInstances()
		if err != nil {
			return nil, err
		}
		exact = nil
		there = slices.DeleteFunc(there, func(i *instance) bool { return !i.placement().Overlaps(p.Placement()) })
		for _, i := range there {
			if i.is(p) {
				exact = i
			}
		}
		if exact == nil {
			return there, nil
		}
		return there, g.load(exact)
	})
	return exact, obstacles, err
}

// is reports whether an instance has a partition's place and profile.
func (i *instance) is(p plan.Partition) bool {
	return (i.profile.Name == p.Profile || i.profile.Name == "") && i.placement() == p.Placement()
}

// recorded returns the instance with a partition's recorded ID, if it is in the partition's place. It does not list the
// others. nil says nothing: the ID may be from before a reboot.
func (g *openGPU) recorded(p plan.Partition) (*instance, error) {
	if p.UUID == "" {
		return nil, nil
	}
	gi, err := g.GPUInstance(p.GPUInstance)
	if err != nil {
		return nil, missing(err)
	}
	i, err := g.identify(gi)
	if err != nil || !i.is(p) {
		return nil, missing(err)
	}
	return i, missing(g.load(i))
}

// missing leaves out the error of an instance that does not exist.
func missing(err error) error {
	if nvml.Vanished(err) {
		return nil
	}
	return err
}

// ours returns the instance of a recorded partition, or what is in its place.
func (g *openGPU) ours(p plan.Partition) (exact *instance, obstacles []*instance, err error) {
	exact, err = g.recorded(p)
	if err != nil {
		return nil, nil, err
	}
	if exact != nil && exact.complete() && exact.hasDevice(p.UUID) {
		return exact, []*instance{exact}, nil
	}
	return g.at(p)
}

func (g *openGPU) profiles() ([]nvml.GPUInstanceProfile, error) {
	profiles, err := g.GPUInstanceProfiles()
	if err != nil {
		return nil, fmt.Errorf("list the MIG profiles: %w", err)
	}
	return profiles, nil
}

func (g *openGPU) profile(name string) (nvml.GPUInstanceProfile, error) {
	profiles, err := g.profiles()
	if err != nil {
		return nvml.GPUInstanceProfile{}, err
	}
	if i := slices.IndexFunc(profiles, func(p nvml.GPUInstanceProfile) bool { return p.Name == name }); i >= 0 {
		return profiles[i], nil
	}
	return nvml.GPUInstanceProfile{}, fmt.Errorf("the GPU offers no MIG profile %s", name)
}

// errGone means that a recorded partition does not exist.
var errGone = fmt.Errorf("the partition is gone: %w", plan.ErrDestroyed)

// find finds a recorded partition and updates its instance IDs. A partition without a recorded UUID must be complete.
func (g *openGPU) find(p *plan.Partition) error {
	on, _, err := g.mode()
	if err != nil {
		return err
	}
	if !on {
		return fmt.Errorf("%w: the MIG mode of its GPU is off", errGone)
	}
	exact, _, err := g.ours(*p)
	switch {
	case err != nil:
		return err
	case exact == nil:
		return fmt.Errorf("%w: no GPU instance of profile %s is at slice %d", errGone, p.Profile, p.Start)
	case !exact.complete():
		return fmt.Errorf("%w: %s has %d compute instances", errGone, exact, len(exact.computes))
	case p.UUID != "" && !exact.hasDevice(p.UUID):
		return fmt.Errorf("%w: %s is another partition, with UUID %s instead of %s", errGone, exact,
			exact.devices[0].UUID, p.UUID)
	}
	exact.note(p)
	return nil
}

// unknownOwner is the error for instances that may belong to claims with unreadable records.
func unknownOwner(obstacles []*instance, uids []string) error {
	return &executor.Busy{
		Obstacle: fmt.Sprintf("%s may belong to claim UID %s, whose record is unreadable", names(obstacles),
			strings.Join(uids, ", ")),
		Remedy: "the kubelet retries and succeeds once that claim is looked up or released; check the node's disk",
	}
}

func names(instances []*instance) string {
	var names []string
	for _, i := range instances {
		names = append(names, i.String())
	}
	return strings.Join(names, " and ")
}

func obstructed(obstacles []*instance) error {
	return &executor.Busy{
		Obstacle: names(obstacles) + ", created outside of this driver, in its place",
		Remedy: "the kubelet retries; destroy these instances (nvidia-smi mig -dci, then -dgi), " +
			"or let the driver do so with --adopt-external-mig",
	}
}
