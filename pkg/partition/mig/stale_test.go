// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/sim/engine"
)

// watching is a session beside that of the executors, like that of the watcher of XIDs. It ends for a switch of its GPU.
type watching struct {
	inventory.Switches
	gpu     string
	session nvml.Session
}

func (w *watching) Lock(address string) {
	w.Switches.Lock(address)
	if w.session != nil && address == w.gpu { // The first switch comes before it.
		_ = w.session.Close()
	}
}

// unclosed is a session that never ends.
const unclosed = -1

// beforeOther starts a process whose NVML session knows the MIG devices of GPU 0, and then another process.
func beforeOther(t *testing.T, watched int) (e *env, first, other *process) {
	e = devicestatetest.NewSimulated(t, "hgx-h100")
	w := &watching{}
	if watched != unclosed {
		w.gpu = e.Address(watched)
	}
	e.Sim.MIG.Switches = w
	first = e.Start()
	given(map[string][]string{"z": {"0 1g.10gb 6"}, "a": {"0 1g.10gb 4"}}, "z")(e, first)
	var err error
	w.session, err = first.Library.Open()
	e.Must(err)
	d, err := w.session.Device(0)
	e.Must(err)
	if all, err := d.MIGDevices(); err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	e.Sim.MIG.Switches = nil
	return e, first, e.Start()
}

// TestPartition_OfAnotherProcess_IsNeitherLostNorLeaked has a session of NVML that does not list the partitions of another
// process, as drivers list MIG devices once in a session.
func TestPartition_OfAnotherProcess_IsNeitherLostNorLeaked(t *testing.T) {
	for name, do := range map[string]func(e *env, p *process){
		"unprepare": func(e *env, p *process) {
			e.Unprepare(p, "a")
			e.CheckClean(p, "z")
		},
		"prepare again": func(e *env, p *process) {
			before := e.Sim.State().GPUs[0].Instances
			e.Prepare(p, "a")
			if after := e.Sim.State().GPUs[0].Instances; len(before) != len(after) {
				e.T.Errorf("%d instances, then %d", len(before), len(after))
			}
			e.CheckClean(p, "a", "z")
		},
		"recover": func(e *env, p *process) {
			e.Must(p.RecoverAll())
			e.CheckClean(p, "a", "z")
		},
	} {
		for _, watched := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, GPU %d watched", name, watched), func(t *testing.T) {
				e, p, other := beforeOther(t, watched)
				e.Prepare(other, "a")
				do(e, p)
			})
		}
	}
}

// TestRecover_ListStaysOutOfDate_ContainersKeepTheirSpec has a session that a call of NVML keeps open.
func TestRecover_ListStaysOutOfDate_ContainersKeepTheirSpec(t *testing.T) {
	e, p, other := beforeOther(t, unclosed)
	e.Prepare(other, "a")
	if err := p.RecoverAll(); err == nil {
		t.Error("an unknown partition is taken for a good one")
	}
	if _, err := os.Stat(e.SpecFile("a")); err != nil {
		t.Error(err)
	}
}

// TestUnprepare_OtherProcessDestroyedIt_Succeeds has a session that still lists a partition which is gone.
func TestUnprepare_OtherProcessDestroyedIt_Succeeds(t *testing.T) {
	e, p, _ := beforeOther(t, 0)
	e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 6) })
	e.Unprepare(p, "z")
	e.CheckClean(p)
}

// TestPartition_Operations_CallNVMLSeldom bounds the calls: each can take from a millisecond to a second on a busy GPU. Of
// those that list instances or MIG devices, each is several calls of the real library.
func TestPartition_Operations_CallNVMLSeldom(t *testing.T) {
	lists := []string{"nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetMigDeviceHandleByIndex"}
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	given(beside, "z")(e, p)
	for _, o := range []struct {
		name         string
		do           func()
		calls, lists int
	}{
		{"prepare", func() { e.Prepare(p, "a") }, 18, 2},
		{"prepare again", func() { e.Prepare(p, "a") }, 11, 1},
		{"recover", func() { e.Recover(p) }, 22, 2},
		{"unprepare", func() { e.Unprepare(p, "a") }, 19, 1},
	} {
		e.Sim.NVML.Answer(0, func(int, nvmltest.Call) bool { return false })
		o.do()
		calls := e.Sim.NVML.Clear()
		listed := 0
		for _, c := range calls {
			if slices.Contains(lists, c.Query) {
				listed++
			}
		}
		if len(calls) > o.calls || listed > o.lists {
			t.Errorf("%s: %d calls, at most %d; %d lists, at most %d:\n%v", o.name, len(calls), o.calls, listed, o.lists, calls)
		}
	}
}
