// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/sim/engine"
)

// callScenarios are operations with calls of NVML; each of the calls fails or hangs.
var callScenarios = func() []devicestatetest.Scenario {
	a, ab := []string{"a"}, []string{"a", "b"}
	part := "0 1g.10gb 4"
	recovers := func(e *env, p *process) error {
		err := p.RecoverAll()
		if errors.Is(err, plan.ErrDestroyed) && len(e.Sim.State().GPUs[0].Instances) > 0 {
			e.T.Errorf("a partition that exists counts as destroyed: %v", err)
		}
		return err
	}
	return []devicestatetest.Scenario{
		{New: h100, Name: "unprepare a partition", Given: given(one, "a"), When: unprepares("a")},
		{New: h100, Name: "the first partition of a GPU", Given: given(one), When: prepares("a"), Then: a},
		{New: h100, Name: "a partition beside another", Given: given(beside, "z"), When: prepares("a"), Then: []string{"a", "z"}},
		{New: h100, Name: "unprepare one of two", Given: given(beside, "a", "z"), When: unprepares("a"), Then: []string{"z"}},
		{New: h100, Name: "a partition again", Given: given(one, "a"), When: prepares("a"), Then: a},
		{New: h100, Name: "a partition that vanished", Given: func(e *env, p *process) {
			given(one, "a")(e, p)
			e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		}, When: prepares("a"), Then: a},
		{New: h100, Name: "recover a partition", Given: given(one, "a"), When: recovers, Then: a},
		{New: h100, Name: "the whole after partitions", Given: func(e *env, p *process) {
			given(one, "a")(e, p)
			e.Unprepare(p, "a")
			e.Claim("a", "0")
		}, When: prepares("a"), Then: a},
		{New: h100, Name: "two GPUs after partitions", Given: func(e *env, p *process) {
			given(map[string][]string{"a": {"0 1g.10gb 4", "1 7g.80gb 0"}}, "a")(e, p)
			e.Unprepare(p, "a")
			e.Claim("a", "0", "1")
		}, When: prepares("a"), Then: a},
		{New: h100, Name: "the first share", Given: shares(byMPS, "0", a), When: prepares("a"), Then: a},
		{New: h100, Name: "unprepare the last share", Given: shares(byMPS, "0", a, "a"), When: unprepares("a")},
		{New: h100, Name: "unprepare the last share of a partition", Given: shares(ofMIG, part, ab, "a"), When: unprepares("a")},
		{New: h100, Name: "the first by time slices", Given: shares(byLong, "0", a), When: prepares("a"), Then: a},
		{New: h100, Name: "unprepare the last by time slices", Given: shares(byLong, "0", a, "a"), When: unprepares("a")},
		{New: h100, Name: "an unused mode is put back", Given: func(e *env, p *process) {
			given(one, "a")(e, p)
			e.Unprepare(p, "a")
		}, When: func(e *env, p *process) error {
			return restoreIdle(p, e.Sim.GPU(0))
		}},
	}
}()

func TestExecutor_CallOfNVMLFailsOrHangs_LosesAndLeaksNothing(t *testing.T) {
	devicestatetest.RunCallMatrix(t, callScenarios)
}

// unlisted is an NVML that does not list a MIG profile.
type unlisted struct {
	nvml.Library
	profile string
}

func (l unlisted) Open() (nvml.Session, error) {
	s, err := l.Library.Open()
	return &unlistedSession{s, l.profile}, err
}

type unlistedSession struct {
	nvml.Session
	profile string
}

func (s *unlistedSession) DeviceAt(address string) (nvml.Device, error) {
	d, err := s.Session.DeviceAt(address)
	return unlistedDevice{d, s.profile}, err
}

type unlistedDevice struct {
	nvml.Device
	profile string
}

func (d unlistedDevice) GPUInstanceProfiles() ([]nvml.GPUInstanceProfile, error) {
	all, err := d.Device.GPUInstanceProfiles()
	return slices.DeleteFunc(all, func(p nvml.GPUInstanceProfile) bool { return p.Name == d.profile }), err
}

func TestUnprepare_ProfileNotListedAnyMore_DestroysPartition(t *testing.T) {
	e := h100(t)
	p := e.Start()
	given(one, "a")(e, p)
	p.Crash()
	e.Sim.Wrap = func(l nvml.Library) nvml.Library { return unlisted{l, "1g.10gb"} }
	p = e.Start()
	e.Unprepare(p, "a")
	e.CheckClean(p)
}

// TestUnprepare_DriverUnloaded_Succeeds has the library missing, or the kernel module: the kernel's list decides.
func TestUnprepare_DriverUnloaded_Succeeds(t *testing.T) {
	e := h100(t)
	p := e.Start()
	given(one, "a")(e, p)
	p.Crash()
	p = e.Start()
	e.Sim.NVML.Answer(nvml.LibraryNotFound, nvmltest.Of("nvmlInit_v2", ""))
	if err := p.Unprepare(context.Background(), devicestatetest.ClaimID("a")); err == nil {
		t.Error("released while the kernel driver has the GPU")
	}
	e.Sim.Change(func(s *engine.State) { s.DriverLoaded = false })
	e.Unprepare(p, "a")
	e.Sim.NVML.Clear()
	e.CheckClean(p)
}

func TestPrepare_MIGModePending_Refused(t *testing.T) {
	e := h100(t)
	p := e.Start()
	e.Sim.Change(func(s *engine.State) { s.GPUs[0].MIGPending = true })
	given(one)(e, p)
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.DeviceInUse, "waits for a reset")
	if g := e.Sim.State().GPUs[0]; g.MIGEnabled || !g.MIGPending || switched(e, p) {
		t.Errorf("the administrator's pending mode: on %v, pending %v, recorded as the driver's %v", g.MIGEnabled, g.MIGPending, switched(e, p))
	}
}

func TestRecover_PartitionVanished_ReportsAndWritesNoSpec(t *testing.T) {
	e := h100(t)
	p := e.Start()
	given(one, "a")(e, p)
	e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
	e.Must(os.Remove(e.SpecFile("a")))
	if err := p.RecoverAll(); !errors.Is(err, plan.ErrDestroyed) {
		t.Errorf("recovery found %v", err)
	}
	if _, err := os.Stat(e.SpecFile("a")); err == nil {
		t.Error("a container can start on a partition that does not exist")
	}
}

// TestUnprepare_RecordDamagedAndSpecMissingOnce_DestroysPartition recovers while the CDI spec cannot be read.
func TestUnprepare_RecordDamagedAndSpecMissingOnce_DestroysPartition(t *testing.T) {
	for name, cause := range map[string]error{"not there": fs.ErrNotExist, "unreadable": syscall.EIO} {
		for _, podWanted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, pod wanted %v", name, podWanted), func(t *testing.T) {
				e := h100(t)
				p := e.Start()
				given(one, "a")(e, p)
				p.Crash()
				e.Damage("a")
				e.ReadFile = func(path string) ([]byte, error) {
					if path == e.SpecFile("a") {
						return nil, &fs.PathError{Op: "open", Path: path, Err: cause}
					}
					return os.ReadFile(path)
				}
				p = e.Start()
				_ = p.RecoverAll()
				p.Crash()
				e.ReadFile = nil
				p = e.Start()
				if podWanted {
					e.Prepare(p, "a")
					e.CheckClean(p, "a")
				}
				e.Unprepare(p, "a")
				e.CheckClean(p)
			})
		}
	}
}
