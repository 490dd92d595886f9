// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package watcher

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// GPUs of claims, by PCI address.
var gpus = []string{"0000:10:00.0", "0000:11:00.0"}

// env is a node with two GPUs, in a bubble. It is the library, its session and its event set.
type env struct {
	*testing.T
	nvml.Session // Panics on unexpected calls.
	proc, sys    string
	watcher      *Watcher
	start        time.Time
	events       chan nvml.Event
	release      chan struct{}

	mu                  sync.Mutex
	needed              int
	lost, hang, fails   bool
	stuck               string // The call that hangs for the second GPU until release.
	bind                bool   // The next Open binds a GPU again.
	open, opened, waits int
	fail                error
	registered          []int
	refuse              error
	refused             []string
	got                 []Event
	polls               []time.Duration
}

type device struct {
	nvml.Device
	index int
}

func (d device) UUID() (string, error) { return "GPU-" + strconv.Itoa(d.index), nil }

func (e *env) Open() (nvml.Session, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fail != nil {
		return nil, e.fail
	}
	if e.bind {
		e.bind = false
		binding := filepath.Join(e.sys, "bus/pci/drivers/nvidia", gpus[1])
		// The new inode exists before the old one ends, so it is another one.
		if err := errors.Join(os.Mkdir(e.sys+"/new", 0o755), os.Remove(binding), os.Rename(e.sys+"/new", binding)); err != nil {
			e.Error(err)
		}
	}
	e.open++
	e.opened++
	return e, nil
}

// stick hangs in a call. The caller holds e.mu.
func (e *env) stick(call string, index int) {
	if index == 1 && e.stuck == call {
		e.mu.Unlock()
		<-e.release
		e.mu.Lock()
	}
}

func (e *env) DeviceAt(address string) (nvml.Device, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	index := slices.Index(gpus, address)
	e.stick("DeviceAt", index)
	if e.lost && index == 1 {
		return nil, nvml.GPUIsLost
	}
	return device{index: index}, nil
}

func (e *env) Events(devices []nvml.Device) (nvml.EventSet, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stick("Events", devices[len(devices)-1].(device).index)
	e.registered = nil
	if len(devices) == 1 && e.refuse != nil {
		return nil, e.refuse
	}
	for _, d := range devices {
		e.registered = append(e.registered, d.(device).index)
	}
	return set{e}, nil
}

func (e *env) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open--
	return nil
}

type set struct{ *env }

func (s set) Refused() map[int]error { return map[int]error{1: s.refuse} }

// Close drops the events that the set has.
func (s set) Close() error {
	for len(s.events) > 0 {
		<-s.events
	}
	return nil
}

func (s set) Wait(limit time.Duration) (nvml.Event, error) {
	s.mu.Lock()
	s.waits++
	lost, hang, fails := s.lost && len(s.registered) == 2, s.hang, s.fails
	s.mu.Unlock()
	switch {
	case hang:
		<-s.release
		return nvml.Event{}, nvml.Unknown
	case lost:
		return nvml.Event{}, nvml.GPUIsLost
	case fails:
		return nvml.Event{}, nvml.Unknown
	}
	if limit == 0 && len(s.events) == 0 {
		return nvml.Event{}, nvml.Timeout
	}
	select {
	case event := <-s.events:
		return event, nil
	case <-time.After(max(limit, 1)):
		return nvml.Event{}, nvml.Timeout
	}
}

func (e *env) set(change func()) {
	e.mu.Lock()
	change()
	e.mu.Unlock()
}

// Held implements plan.Held.
func (e *env) Held() (plans []plan.Plan, incomplete bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, address := range gpus[:e.needed] {
		plans = append(plans, plan.Plan{Devices: []plan.Device{{Kind: gpu.KindGPU, PCIAddress: address}}})
	}
	return plans, false, nil
}

type receiver struct{ *env }

func (r receiver) Event(x Event) { r.set(func() { r.got = append(r.got, x) }) }

func (r receiver) Refused(g gpu.GPU, refused bool) {
	r.set(func() { r.refused = append(r.refused, g.UUID+" "+strconv.FormatBool(refused)) })
}

// list sets the kernel's list of GPUs.
func (e *env) list(gpus ...string) {
	e.Helper()
	for _, g := range gpus {
		if err := os.MkdirAll(filepath.Join(e.proc, "driver/nvidia/gpus", g), 0o755); err != nil {
			e.Fatal(err)
		}
	}
}

// after checks the number of open sessions and of all sessions after a time.
func (e *env) after(d time.Duration, open, opened int) {
	e.Helper()
	time.Sleep(d)
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open != open || e.opened != opened {
		e.Errorf("%d sessions are open after %d, want %d after %d", e.open, e.opened, open, opened)
	}
}

func run(t *testing.T, do func(*env)) {
	t.Helper()
	proc, sys := t.TempDir(), t.TempDir()
	for _, g := range gpus {
		if err := os.MkdirAll(filepath.Join(sys, "bus/pci/drivers/nvidia", g), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		e := &env{T: t, proc: proc, sys: sys, needed: 2, events: make(chan nvml.Event, 1<<16), release: make(chan struct{}), start: time.Now()}
		e.list(gpus...)
		poll := notify.NewTrigger()
		e.watcher = New(Options{
			Library: e, ProcRoot: proc, SysRoot: sys, Locks: NewLocks(), Records: e, Receiver: receiver{e}, XIDs: notify.NewTrigger(), Poll: poll,
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for ctx.Err() == nil {
				select {
				case <-poll:
					e.set(func() { e.polls = append(e.polls, time.Since(e.start)) })
				case <-ctx.Done():
				}
			}
		}()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.watcher.Run(ctx)
		}()
		synctest.Wait()
		do(e)
		cancel()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("Run waits for a call of NVML")
		}
		close(e.release)
		time.Sleep(waitLimit)
	})
}

func TestRun_XID_IsPassedOnAndCausesPolls(t *testing.T) {
	run(t, func(e *env) {
		e.after(0, 1, 1)
		e.events <- nvml.Event{Device: 1, XID: 31, GPUInstance: 3, ComputeInstance: 0}
		e.after(time.Minute, 1, 1)
		want := []time.Duration{0, time.Second, 5 * time.Second, 15 * time.Second}
		if diff := cmp.Diff(want, e.polls); diff != "" {
			t.Errorf("polls (-want +got):\n%s", diff)
		}
		e.events <- nvml.Event{Device: 0, XID: 79, GPUInstance: -1, ComputeInstance: -1}
		e.events <- nvml.Event{Device: -1, XID: 62, GPUInstance: -1, ComputeInstance: -1} // Of an unknown GPU.
		e.after(time.Minute, 1, 1)
		if len(e.got) != 2 || e.got[0].GPU.PCIAddress != "0000:11:00.0" || e.got[0].GPUInstance != 3 || e.got[1].GPU.UUID != "GPU-0" || e.got[1].GPUInstance != -1 {
			t.Errorf("XIDs %+v", e.got)
		}
	})
}

func TestRun_Storm_BoundsPolls(t *testing.T) {
	run(t, func(e *env) {
		for range 10_000 {
			e.events <- nvml.Event{XID: 31}
			time.Sleep(time.Millisecond)
		}
		e.after(0, 1, 1)
		if len(e.got) != 10_000 || len(e.polls) > 11 {
			t.Errorf("%d XIDs, %d polls", len(e.got), len(e.polls))
		}
		for range cap(e.events) {
			e.events <- nvml.Event{XID: 31}
		}
		e.set(func() { e.needed = 0 })
		e.watcher.Changed()
		e.after(2*waitLimit, 0, 1)
	})
}

// TestRun_LostGPU_DoesNotSpin counts the calls of a GPU that stays lost: first one that only waits show, then one that
// does not answer.
func TestRun_LostGPU_DoesNotSpin(t *testing.T) {
	run(t, func(e *env) {
		e.set(func() { e.lost = true })
		time.Sleep(waitLimit)
		e.after(time.Minute, 1, 2)
		if diff := cmp.Diff([]int{0}, e.registered); diff != "" {
			t.Errorf("registered GPUs (-want +got):\n%s", diff)
		}
		if e.waits > 70 || len(e.polls) != 1 {
			t.Errorf("%d waits and %d polls in a minute", e.waits, len(e.polls))
		}
	})
}

// TestRun_LostGPUReturns_IsRegisteredAgain resets a GPU that was lost, which does not change the kernel's list.
func TestRun_LostGPUReturns_IsRegisteredAgain(t *testing.T) {
	run(t, func(e *env) {
		e.set(func() { e.lost = true })
		e.after(10*time.Second, 1, 2)
		e.set(func() { e.lost = false })
		e.after(longestPause, 1, 3)
		if diff := cmp.Diff([]int{0, 1}, e.registered); diff != "" {
			t.Errorf("registered GPUs (-want +got):\n%s", diff)
		}
		e.after(time.Hour, 1, 3)
	})
}

// TestRun_GPUBoundAgainDuringOpen_OpensAgain: the kernel's list is as before, and the session has no such GPU.
func TestRun_GPUBoundAgainDuringOpen_OpensAgain(t *testing.T) {
	run(t, func(e *env) {
		e.set(func() { e.bind = true })
		e.set(func() { e.needed = 1 })
		e.watcher.Changed()
		e.after(10*time.Second, 1, 3)
		e.after(time.Hour, 1, 3)
	})
}

func TestRun_NVMLFails_BacksOff(t *testing.T) {
	run(t, func(e *env) {
		e.set(func() { e.fail = errors.New("in use") })
		e.list("0000:12:00.0")
		e.after(time.Hour, 0, 1)
		if len(e.polls) < 60 || len(e.polls) > 70 {
			t.Errorf("%d attempts in an hour", len(e.polls))
		}
		e.set(func() { e.fail = nil })
		e.after(2*longestPause, 1, 2)
	})
}

// TestRun_WaitsFail_BacksOff has waits that fail at once, for an hour. Polls of the health go on.
func TestRun_WaitsFail_BacksOff(t *testing.T) {
	run(t, func(e *env) {
		e.set(func() { e.fails = true })
		time.Sleep(time.Hour)
		synctest.Wait()
		e.set(func() {
			if e.open != 0 || e.waits > 75 || len(e.polls) < 60 || len(e.polls) > 75 {
				e.Errorf("%d waits and %d polls in an hour, %d sessions are open", e.waits, len(e.polls), e.open)
			}
			e.fails = false
		})
		time.Sleep(2 * longestPause)
		e.events <- nvml.Event{XID: 31}
		time.Sleep(waitLimit)
		synctest.Wait()
		e.set(func() {
			if len(e.got) != 1 {
				e.Errorf("%d XIDs after the waits work again", len(e.got))
			}
		})
	})
}

func TestRun_ClaimsComeAndGo_SessionOnlyWhileNeeded(t *testing.T) {
	run(t, func(e *env) {
		e.after(0, 1, 1)
		e.set(func() { e.needed = 0 })
		e.watcher.Changed()
		e.after(waitLimit, 0, 1)
		e.after(time.Hour, 0, 1)
		e.set(func() { e.needed = 1 })
		e.watcher.Changed()
		e.after(0, 1, 2)
		if diff := cmp.Diff([]int{0}, e.registered); diff != "" {
			t.Errorf("registered GPUs (-want +got):\n%s", diff)
		}
		e.set(func() { e.needed = 2 })
		e.watcher.Changed()
		e.after(waitLimit, 1, 3)
		e.list("0000:12:00.0") // A new GPU, which only a scan without open session sees.
		e.after(waitLimit, 0, 3)
		e.after(firstPause, 1, 4)
		if len(e.polls) != 1 {
			t.Errorf("%d polls, want one that sees the new GPU", len(e.polls))
		}
	})
}

// TestRun_SetEnds_ItsXIDsArrive has XIDs that a set has when another one is needed. A storm of them holds it up for a
// moment only.
func TestRun_SetEnds_ItsXIDsArrive(t *testing.T) {
	run(t, func(e *env) {
		e.after(waitLimit, 1, 1)
		e.set(func() { e.needed = 1 })
		e.watcher.Changed()
		time.Sleep(waitLimit / 2)
		e.events <- nvml.Event{XID: 1}
		time.Sleep(waitLimit * 7 / 10)
		for xid := range uint64(3) {
			e.events <- nvml.Event{XID: 2 + xid}
		}
		e.after(waitLimit/2, 1, 2)
		e.set(func() {
			if len(e.got) != 4 {
				e.Errorf("%d XIDs, want 4: %v", len(e.got), e.got)
			}
			e.needed = 2
		})
		e.watcher.Changed()
		for range 3 * waitLimit / time.Millisecond {
			e.events <- nvml.Event{XID: 31}
			time.Sleep(time.Millisecond)
		}
		e.after(0, 1, 3)
	})
}

func TestLock_GPUInSet_OthersStayUntilUnlock(t *testing.T) {
	run(t, func(e *env) {
		e.watcher.Lock(gpus[1])
		e.watcher.Lock(gpus[1])
		e.after(0, 1, 2)
		if diff := cmp.Diff([]int{0}, e.registered); diff != "" {
			t.Errorf("registered GPUs (-want +got):\n%s", diff)
		}
		e.watcher.Unlock(gpus[1])
		e.after(time.Minute, 1, 2)
		e.watcher.Lock(gpus[0])
		e.after(0, 0, 2)
		e.watcher.Unlock(gpus[0])
		e.watcher.Unlock(gpus[1])
		e.after(firstPause, 1, 3)
		if diff := cmp.Diff([]int{0, 1}, e.registered); diff != "" {
			t.Errorf("registered GPUs (-want +got):\n%s", diff)
		}
	})
}

// TestLock_GPUNotInSet_DoesNotWait locks the GPU of no claim, and has it claimed meanwhile.
func TestLock_GPUNotInSet_DoesNotWait(t *testing.T) {
	run(t, func(e *env) {
		e.set(func() { e.needed = 1 })
		e.watcher.Changed()
		e.after(waitLimit, 1, 2)
		began := time.Now()
		e.watcher.Lock(gpus[1])
		if waited := time.Since(began); waited > 0 {
			t.Errorf("Lock waited %s for the set of another GPU", waited)
		}
		e.set(func() { e.needed = 2 })
		e.watcher.Changed()
		e.after(time.Minute, 1, 2)
		e.watcher.Unlock(gpus[1])
		e.after(waitLimit, 1, 3)
	})
}

// TestRun_GPUsWithoutXIDs_AreReported has a GPU that refuses beside another one, and alone. Another error than that of a
// missing function says nothing about the GPU.
func TestRun_GPUsWithoutXIDs_AreReported(t *testing.T) {
	run(t, func(e *env) {
		for n, step := range []struct {
			refuse error
			needed int
			want   []string
		}{
			{nvml.NotSupported, 2, []string{"GPU-0 false", "GPU-1 true"}},
			{nvml.NotSupported, 1, []string{"GPU-0 true"}},
			{nvml.Unknown, 2, []string{"GPU-0 false", "GPU-1 false"}},
			{nvml.Unknown, 1, nil},
		} {
			e.set(func() { e.refuse, e.needed = step.refuse, 0 })
			e.watcher.Changed()
			time.Sleep(2 * longestPause)
			e.set(func() { e.needed, e.refused = step.needed, nil })
			e.watcher.Changed()
			time.Sleep(waitLimit / 2)
			synctest.Wait()
			e.mu.Lock()
			if diff := cmp.Diff(step.want, e.refused); diff != "" {
				t.Errorf("step %d: refused (-want +got):\n%s", n, diff)
			}
			e.mu.Unlock()
		}
	})
}

// TestRun_WaitHangs_OthersGoOn leaves a wait hanging. Neither Lock nor the end of Run waits for it.
func TestRun_WaitHangs_OthersGoOn(t *testing.T) {
	run(t, func(e *env) {
		e.set(func() { e.hang = true })
		time.Sleep(time.Hour)
		began := time.Now()
		e.watcher.Lock(gpus[0])
		e.watcher.Changed()
		e.watcher.Unlock(gpus[0])
		if waited := time.Since(began); waited > 2*waitLimit {
			t.Errorf("Lock waited %s", waited)
		}
		e.after(time.Hour, 1, 1)
	})
}

// TestRun_OneGPUHangs_OthersXIDsArrive lets a call hang for one GPU. Its session stays open, and no other call is begun for
// it. Locks of the other GPU work as ever.
func TestRun_OneGPUHangs_OthersXIDsArrive(t *testing.T) {
	for _, call := range []string{"DeviceAt", "Events"} {
		run(t, func(e *env) {
			open := func(want int) {
				synctest.Wait()
				if e.mu.Lock(); e.open != want {
					t.Errorf("%s hangs: %d sessions are open, want %d", call, e.open, want)
				}
				e.mu.Unlock()
			}
			e.watcher.Lock(gpus[0])
			e.watcher.Lock(gpus[1])
			open(0)
			e.set(func() { e.stuck = call })
			e.watcher.Unlock(gpus[1])
			e.watcher.Unlock(gpus[0])
			time.Sleep(3 * longestPause)
			open(2)
			e.events <- nvml.Event{Device: 0, XID: 79, GPUInstance: -1, ComputeInstance: -1}
			time.Sleep(waitLimit)
			open(2)
			if len(e.got) != 1 || e.got[0].GPU.UUID != "GPU-0" {
				t.Errorf("%s hangs: XIDs %+v", call, e.got)
			}
			began := time.Now()
			e.watcher.Lock(gpus[0])
			if waited := time.Since(began); waited > waitLimit {
				t.Errorf("%s hangs: Lock of the other GPU waited %s", call, waited)
			}
			open(1)
			e.watcher.Unlock(gpus[0])
		})
	}
}
