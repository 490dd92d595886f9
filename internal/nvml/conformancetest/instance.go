// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/nvml"
)

func (p *partition) everyPlacement(t *testing.T) {
	profiles, placements := p.profiles(t)
	for n, profile := range profiles {
		for _, at := range placements[n] {
			g := p.create(t, profile, at)
			info, err := g.Info()
			want := nvml.GPUInstanceInfo{ID: info.ID, ProfileID: profile.ID, Placement: at}
			if err != nil || info != want {
				t.Errorf("%s asked for at %+v is %+v, %v", profile.Name, at, info, err)
			}
			if diff := cmp.Diff([]nvml.GPUInstanceInfo{want}, p.instances(t)); diff != "" {
				t.Errorf("instances (-want +got):\n%s", diff)
			}
			for k, other := range profiles {
				for _, there := range placements[k] {
					if overlap(at, there) {
						_, err := p.gpu.CreateGPUInstance(other.ID, there)
						refused(t, other.Name+" over "+profile.Name, err, nvml.InsufficientResources)
					}
				}
			}
			p.destroy(t, g)
			_, err = g.Info()
			refused(t, "Info of a destroyed instance", err, nvml.NotFound, nvml.InvalidArgument)
			refused(t, "Destroy of a destroyed instance", g.Destroy(), nvml.NotFound, nvml.InvalidArgument)
			if left := p.instances(t); len(left) != 0 {
				t.Fatalf("instances after Destroy: %v", left)
			}
		}
	}
}

func (p *partition) invalidPlacements(t *testing.T) {
	profile, at := p.smallest(t)
	last := at[len(at)-1]
	for name, bad := range map[string]nvml.MIGPlacement{
		"beyond the end": {Start: last.Start + 64, Size: last.Size}, "before the start": {Start: -1, Size: last.Size},
		"of another size": {Start: last.Start, Size: last.Size + 1}, "of no size": {Start: last.Start},
	} {
		_, err := p.gpu.CreateGPUInstance(profile.ID, bad)
		refused(t, "a placement "+name, err, nvml.InvalidArgument)
	}
	for _, id := range []int{-1, 1 << 20} {
		_, err := p.gpu.CreateGPUInstance(id, at[0])
		refused(t, "an unknown profile", err, nvml.InvalidArgument, nvml.NotSupported)
	}
	if made := p.instances(t); len(made) != 0 {
		t.Errorf("refused, but created: %v", made)
	}
}

func (p *partition) untilFull(t *testing.T) {
	profile, at := p.smallest(t)
	var made []nvml.GPUInstance
	for _, place := range at {
		g, err := p.gpu.CreateGPUInstance(profile.ID, place)
		if err != nil {
			refused(t, "one more on a full GPU", err, nvml.InsufficientResources)
			continue
		}
		made = append(made, g)
	}
	if len(made) != profile.Instances {
		t.Errorf("%d × %s fit, want %d", len(made), profile.Name, profile.Instances)
	}
	if there := p.instances(t); len(there) != len(made) {
		t.Errorf("%d made, %d there", len(made), len(there))
	}
	for _, g := range made {
		p.destroy(t, g)
	}
}

// full returns the compute instance profile that takes a whole GPU instance.
func full(t *testing.T, g nvml.GPUInstance, profile nvml.GPUInstanceProfile) nvml.ComputeInstanceProfile {
	t.Helper()
	found, err := g.ComputeInstanceProfiles()
	if err != nil {
		t.Fatal(err)
	}
	var whole nvml.ComputeInstanceProfile
	names := map[string]bool{}
	for _, c := range found {
		if c.Slices < 1 || c.Slices > profile.Slices || c.Instances < 1 ||
			c.Multiprocessors > profile.Multiprocessors ||
			names[c.Name] || !profileForm.MatchString(c.Name) {
			t.Errorf("compute instance profile %+v of %+v", c, profile)
		}
		names[c.Name] = true
		if c.Slices == profile.Slices {
			whole = c
		}
	}
	if whole.Name != profile.Name {
		t.Fatalf("of %+v none takes all of %s", found, profile.Name)
	}
	return whole
}

func (p *partition) device(t *testing.T) {
	profile, at := p.smallest(t)
	g := p.create(t, profile, at[0])
	if d := p.devices(t); len(d) != 0 {
		t.Errorf("devices of an instance without compute instance: %v", d)
	}
	c, err := g.CreateComputeInstance(full(t, g, profile).ID)
	if err != nil {
		t.Fatal(err)
	}
	first := p.devices(t)
	if len(first) != 1 || !migUUIDForm.MatchString(first[0].UUID) {
		t.Fatalf("devices: %v, want one with a UUID", first)
	}
	_, err = g.CreateComputeInstance(full(t, g, profile).ID)
	refused(t, "a second compute instance of full size", err, nvml.InsufficientResources)
	refused(t, "Destroy with a compute instance", g.Destroy(), nvml.InUse)

	again := open(t, p.lib)
	elsewhere, err := gpuAt(t, again, 0).MIGDevices()
	if diff := cmp.Diff(first, elsewhere); diff != "" || err != nil {
		t.Errorf("another session sees other devices: %v (-first +other):\n%s", err, diff)
	}
	closed(t, again)

	p.destroy(t, c)
	_, err = c.Info()
	refused(t, "Info of a destroyed compute instance", err, nvml.NotFound, nvml.InvalidArgument)
	if d := p.devices(t); len(d) != 0 {
		t.Errorf("devices after the compute instance was destroyed: %v", d)
	}
	p.destroy(t, g)
}

func (p *partition) shared(t *testing.T) {
	profile, at := p.largest(t)
	g := p.create(t, profile, at[0])
	whole := full(t, g, profile)
	offered, err := g.ComputeInstanceProfiles()
	if err != nil {
		t.Fatal(err)
	}
	one := offered[0]
	var made []nvml.ComputeInstance
	for range one.Instances {
		c, err := g.CreateComputeInstance(one.ID)
		if err != nil {
			t.Fatalf("%d of %d × %s: %v", len(made)+1, one.Instances, one.Name, err)
		}
		made = append(made, c)
	}
	_, err = g.CreateComputeInstance(one.ID)
	refused(t, "one more compute instance", err, nvml.InsufficientResources)
	_, err = g.CreateComputeInstance(whole.ID)
	refused(t, "a compute instance of full size, over others", err, nvml.InsufficientResources)
	_, err = g.CreateComputeInstance(1 << 20)
	refused(t, "an unknown compute profile", err, nvml.InvalidArgument, nvml.NotSupported)
	p.instances(t) // checks that each is a device
	for _, c := range made {
		p.destroy(t, c)
	}
	p.destroy(t, g)
}

func (p *partition) modeUnderInstance(t *testing.T) {
	profile, at := p.smallest(t)
	g := p.create(t, profile, at[0])
	refused(t, "SetMIGMode(false) with an instance", p.gpu.SetMIGMode(false), nvml.InUse)
	p.modeIs(t, true)
	if there := p.instances(t); len(there) != 1 {
		t.Errorf("instances: %v, want the one", there)
	}
	p.destroy(t, g)
}

func (p *partition) held(t *testing.T) {
	profile, at := p.smallest(t)
	g := p.create(t, profile, at[0])
	c, err := g.CreateComputeInstance(full(t, g, profile).ID)
	if err != nil {
		t.Fatal(err)
	}
	d := p.devices(t)[0]
	release := p.machine.Hold(t, d.GPUInstance, d.ComputeInstance)
	holders, err := p.gpu.Processes()
	if err != nil || len(holders) != 1 || holders[0].GPUInstance != d.GPUInstance ||
		holders[0].ComputeInstance != d.ComputeInstance {
		t.Errorf("Processes = %+v, %v; want one on %+v", holders, err, d)
	}
	refused(t, "Destroy of a held compute instance", c.Destroy(), nvml.InUse)
	release()
	p.destroy(t, c)
	p.destroy(t, g)
}

func (p *partition) separateGPUs(t *testing.T) {
	profile, at := p.smallest(t)
	g := p.create(t, profile, at[0])
	unpartitioned(t, 1, p.other)
	p.destroy(t, g)
}

func (p *partition) race(t *testing.T) {
	profile, at := p.smallest(t)
	var wg sync.WaitGroup
	won := make(chan nvml.GPUInstance, 8)
	for range cap(won) {
		wg.Go(func() {
			g, err := p.gpu.CreateGPUInstance(profile.ID, at[0])
			if err == nil {
				won <- g
			} else if !errors.Is(err, nvml.InsufficientResources) {
				t.Errorf("the loser: %v, want InsufficientResources", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 || len(p.instances(t)) != 1 {
		t.Errorf("%d won", len(won))
	}
	for len(won) > 0 {
		p.destroy(t, <-won)
	}
}

func (p *partition) afterClose(t *testing.T) {
	s := open(t, p.lib)
	d := gpuAt(t, s, 0)
	profile, at := p.smallest(t)
	closed(t, s)
	refused(t, "SetMIGMode after Close", d.SetMIGMode(true), nvml.Uninitialized)
	_, err := d.CreateGPUInstance(profile.ID, at[0])
	refused(t, "CreateGPUInstance after Close", err, nvml.Uninitialized)
	p.modeIs(t, false)
}
