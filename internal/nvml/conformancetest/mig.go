// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
)

var (
	profileForm = regexp.MustCompile(`^([1-9][0-9]*c\.)?[1-9][0-9]*g\.[1-9][0-9]*gb([+-][a-z]+(\.[a-z]+)*)*$`)
	migUUIDForm = regexp.MustCompile("^MIG-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
)

// partitions checks each GPU's MIG answers, without changing the GPU.
func partitions(t *testing.T, s nvml.Session) {
	each(s, func(i int, d nvml.Device) {
		on, _, err := d.MIGMode()
		switch {
		case nvml.Unavailable(err):
			whole(t, i, d)
		case err != nil:
			typed(t, err)
		default:
			offers(t, i, d)
			if !on {
				unpartitioned(t, i, d)
				return
			}
			if seen, ok := settled(t, i, d); ok {
				seen.check(t, i, d)
			}
		}
	})
}

// whole is a GPU without MIG: every MIG query returns NotSupported.
func whole(t *testing.T, i int, d nvml.Device) {
	_, profiles := d.GPUInstanceProfiles()
	_, placements := d.GPUInstancePlacements(0)
	for name, err := range map[string]error{"GPUInstanceProfiles": profiles, "GPUInstancePlacements": placements} {
		if !nvml.Unavailable(err) {
			t.Errorf("GPU %d has no MIG, and %s: %v, want NotSupported", i, name, err)
		}
	}
	unpartitioned(t, i, d)
}

// unpartitioned is a GPU without partitions: its MIG mode is off or it has no instances.
func unpartitioned(t *testing.T, i int, d nvml.Device) {
	_, instances := d.GPUInstances()
	_, devices := d.MIGDevices()
	for name, err := range map[string]error{"GPUInstances": instances, "MIGDevices": devices} {
		if !nvml.Unavailable(err) {
			t.Errorf("GPU %d is not in MIG mode, and %s: %v, want NotSupported", i, name, err)
			continue
		}
		typed(t, err)
	}
}

// offers checks profiles and their placements, which are the same in either mode.
func offers(t *testing.T, i int, d nvml.Device) {
	profiles, err := d.GPUInstanceProfiles()
	if err != nil {
		typed(t, err)
		return
	}
	memory, memoryErr := d.Memory()
	ids, names := map[int]bool{}, map[string]bool{}
	for _, p := range profiles {
		what := fmt.Sprintf("GPU %d: profile %+v", i, p)
		if p.ID < 0 || ids[p.ID] || names[p.Name] || !profileForm.MatchString(p.Name) {
			t.Errorf("%s: want an ID and a name of its own, and a name such as 1g.10gb+me", what)
		}
		ids[p.ID], names[p.Name] = true, true
		if p.Slices < 1 || p.Instances < 1 || p.Multiprocessors < 1 || p.MemoryMiB < 1 {
			t.Errorf("%s: want slices, instances, multiprocessors and memory", what)
		}
		if memoryErr == nil && p.MemoryMiB > memory.Total>>20 {
			t.Errorf("%s: more memory than the GPU's %d MiB", what, memory.Total>>20)
		}
		placements, err := d.GPUInstancePlacements(p.ID)
		if errors.Is(err, nvml.NoPermission) {
			continue
		}
		if err != nil {
			t.Errorf("%s: placements: %v", what, err)
			continue
		}
		places(t, what, p, placements)
	}
	const none = 1 << 20
	if p, err := d.GPUInstancePlacements(none); !errors.Is(err, nvml.InvalidArgument) &&
		!errors.Is(err, nvml.NotSupported) {
		t.Errorf("GPU %d: placements of unknown profile %d: %v, %v", i, none, p, err)
	}
}

func places(t *testing.T, what string, p nvml.GPUInstanceProfile, placements []nvml.MIGPlacement) {
	fit, end := 0, 0
	for n, at := range placements {
		if at.Start < 0 || at.Size < 1 || at.Size != placements[0].Size || n > 0 && at.Start <= placements[n-1].Start {
			t.Errorf("%s: placements %v: want them in order of their start, each once, all of one size", what,
				placements)
		}
		if at.Start >= end {
			fit, end = fit+1, at.Start+at.Size
		}
	}
	if fit < p.Instances {
		t.Errorf("%s: %d fit into its placements %v", what, fit, placements)
	}
}

// partitioning holds the partitions of a GPU at one moment.
type partitioning struct {
	Instances map[int]nvml.GPUInstanceInfo
	Compute   map[[2]int]nvml.ComputeInstanceInfo
	Devices   []nvml.MIGDevice
}

// settled reads until two readings agree, since other processes may partition a real GPU meanwhile.
func settled(t *testing.T, i int, d nvml.Device) (c partitioning, ok bool) {
	before, err := readPartitioning(t, i, d)
	for range 5 {
		if err != nil {
			break
		}
		if c, err = readPartitioning(t, i, d); err == nil && cmp.Equal(before, c) {
			return c, true
		}
		before = c
	}
	if err != nil {
		typed(t, err)
	}
	return c, false
}

func readPartitioning(t *testing.T, i int, d nvml.Device) (c partitioning, err error) {
	c = partitioning{Instances: map[int]nvml.GPUInstanceInfo{}, Compute: map[[2]int]nvml.ComputeInstanceInfo{}}
	instances, err := d.GPUInstances()
	if err != nil {
		return c, err
	}
	lastGPU := -1
	for _, g := range instances {
		info, err := g.Info()
		if err != nil {
			return c, err
		}
		if info.ID <= lastGPU {
			t.Errorf("GPU %d: GPU instance %d after %d", i, info.ID, lastGPU)
		}
		lastGPU = info.ID
		c.Instances[info.ID] = info
		again, err := d.GPUInstance(info.ID)
		if err == nil {
			info, err = again.Info()
		}
		if err != nil {
			return c, err
		}
		if info != c.Instances[info.ID] {
			t.Errorf("GPU %d: the instance with ID %d is %+v", i, info.ID, info)
		}
		parts, err := g.ComputeInstances()
		if err != nil {
			return c, err
		}
		lastCompute := -1
		for _, p := range parts {
			part, err := p.Info()
			if err != nil {
				return c, err
			}
			if part.ID <= lastCompute {
				t.Errorf("GPU %d: compute instance %d/%d after %d", i, info.ID, part.ID, lastCompute)
			}
			lastCompute = part.ID
			c.Compute[[2]int{info.ID, part.ID}] = part
		}
	}
	if c.Devices, err = d.MIGDevices(); err != nil {
		return c, err
	}
	of := map[int][]nvml.MIGDevice{}
	for _, m := range c.Devices {
		of[m.GPUInstance] = append(of[m.GPUInstance], m)
	}
	for id, want := range of {
		for _, count := range []int{1, len(want)} {
			got, err := d.MIGDevicesOf(id, count)
			if err != nil {
				return c, err
			}
			if len(got) != count || count == len(want) && !cmp.Equal(got, want) {
				t.Errorf("GPU %d: %d devices of GPU instance %d: %v, want of %v", i, count, id, got, want)
			}
		}
	}
	return c, nil
}

func (c partitioning) check(t *testing.T, i int, d nvml.Device) {
	profiles, err := d.GPUInstanceProfiles()
	if err != nil {
		typed(t, err)
		return
	}
	possible := map[int]map[nvml.MIGPlacement]bool{}
	for _, p := range profiles {
		possible[p.ID] = map[nvml.MIGPlacement]bool{}
		placements, _ := d.GPUInstancePlacements(p.ID)
		for _, at := range placements {
			possible[p.ID][at] = true
		}
	}
	for _, a := range c.Instances {
		if !possible[a.ProfileID][a.Placement] {
			t.Errorf("GPU %d: instance %+v is at none of its profile's placements", i, a)
		}
		for _, b := range c.Instances {
			if a.ID != b.ID && overlap(a.Placement, b.Placement) {
				t.Errorf("GPU %d: instances %+v and %+v overlap", i, a, b)
			}
		}
	}
	seen := map[[2]int]bool{}
	uuids := map[string]bool{}
	for n, m := range c.Devices {
		at := [2]int{m.GPUInstance, m.ComputeInstance}
		if _, ok := c.Compute[at]; !ok || seen[at] || uuids[m.UUID] || !migUUIDForm.MatchString(m.UUID) {
			t.Errorf("GPU %d: device %+v: want one for each compute instance of %v, with a UUID of its own", i, m,
				c.Compute)
		}
		seen[at], uuids[m.UUID] = true, true
		if n > 0 {
			p := c.Devices[n-1]
			if p.GPUInstance > m.GPUInstance || p.GPUInstance == m.GPUInstance &&
				p.ComputeInstance > m.ComputeInstance {
				t.Errorf("GPU %d: device %+v after %+v", i, m, p)
			}
		}
	}
	if len(seen) != len(c.Compute) {
		t.Errorf("GPU %d: devices %v, compute instances %v", i, c.Devices, c.Compute)
	}
}

func overlap(a, b nvml.MIGPlacement) bool {
	return a.Start < b.Start+b.Size && b.Start < a.Start+a.Size
}
