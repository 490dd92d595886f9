// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/claim/claimerror"
)

// RunCallMatrix makes each call of NVML in each scenario's operation fail: once, for as long as the operation lasts,
// and by hanging. Then the same process goes on without the fault, as the kubelet repeats its calls. Nothing may be
// leaked, lost or stuck, and a claim of another GPU is served during the fault. Scenarios need simulated GPUs.
//
// The first scenario gets every code of nvml.h, the others one code of each kind that the driver distinguishes.
func RunCallMatrix(t *testing.T, scenarios []Scenario) {
	var calls, runs, states int
	for i, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			m := &callMatrix{t: t, s: s, every: i == 0, crashMatrix: crashMatrix{checked: map[string]bool{}}}
			m.run()
			calls, runs, states = calls+m.calls, runs+m.runs, states+m.states
		})
	}
	t.Logf("call matrix: %d scenarios, %d calls, %d runs, %d states", len(scenarios), calls, runs, states)
}

type callMatrix struct {
	crashMatrix
	t           *testing.T
	s           Scenario
	every       bool
	calls, runs int
}

// callFault is a fault of one run.
type callFault struct {
	call  nvmltest.Call
	match func(int, nvmltest.Call) bool
	code  nvml.Code
	// lasts means that the fault lasts until the operation ends.
	lasts bool
}

func (f callFault) String() string {
	switch {
	case f.code == 0:
		return f.call.String() + " hangs"
	case f.lasts:
		return fmt.Sprintf("%s always answers %d", f.call, f.code)
	}
	return fmt.Sprintf("%s answers %d", f.call, f.code)
}

// resets reports whether the GPU itself is at fault: it loses its state before it works again.
func (f callFault) resets() bool {
	return f.lasts && (f.code == nvml.GPUIsLost || f.code == nvml.ResetRequired)
}

func (m *callMatrix) run() {
	e, p := m.begin(m.t)
	e.Sim.NVML.Answer(0, nvmltest.Nth(-1))
	if err := m.s.When(e, p); (err != nil) != m.s.Refused {
		m.t.Fatalf("refused: %v", err)
	}
	calls := e.Sim.NVML.Clear()
	m.calls = len(calls)
	run := func(f callFault, do func(*testing.T, callFault)) {
		if seedtest.Chosen(fmt.Sprint(m.s.Name, m.calls, f)) {
			m.t.Run(f.String(), func(t *testing.T) { do(t, f) })
		}
	}
	met := map[nvmltest.Call]bool{}
	for n, c := range calls {
		for _, code := range m.codes(c, false) {
			run(callFault{call: c, match: nvmltest.Nth(n), code: code}, m.strike)
		}
		if met[c] {
			continue
		}
		met[c] = true
		same := func(_ int, other nvmltest.Call) bool { return other == c }
		for _, code := range m.codes(c, true) {
			f := callFault{call: c, match: same, code: code, lasts: true}
			if f.resets() && c.GPU != "" {
				f.match = nvmltest.On(c.GPU)
			}
			run(f, m.strike)
		}
		run(callFault{call: c, match: nvmltest.Nth(n)}, m.hang)
	}
}

// kinds are codes that the driver handles in different ways. Codes in vanished are answers of every query, because a
// thing can vanish between its listing and the query. Codes in lacks mean that a GPU does not have the thing; if the
// answer lasts, it is true.
var (
	kinds = slices.Concat(vanished, []nvml.Code{
		nvml.NotSupported, nvml.DriverNotLoaded, nvml.GPUIsLost, nvml.InUse, nvml.InsufficientResources, nvml.Unknown,
	})
	vanished = []nvml.Code{nvml.NotFound, nvml.InvalidArgument}
	lacks    = []nvml.Code{nvml.NotSupported, nvml.FunctionNotFound}
)

func (m *callMatrix) codes(c nvmltest.Call, last bool) []nvml.Code {
	if ofSupervisor(c) {
		return []nvml.Code{nvml.Unknown, nvml.DriverNotLoaded}
	}
	if c.AfterEffect {
		return []nvml.Code{nvml.Timeout, nvml.GPUIsLost} // The answer of a change that succeeded is lost.
	}
	if c.Query == SMI {
		return []nvml.Code{nvml.Unknown, nvml.GPUIsLost}
	}
	codes := append(nvmltest.Codes(m.t, c.Query), vanished...)
	slices.Sort(codes)
	return slices.DeleteFunc(slices.Compact(codes), func(code nvml.Code) bool {
		return last && slices.Contains(lacks, code) || !m.every && !slices.Contains(kinds, code)
	})
}

func ofSupervisor(c nvmltest.Call) bool { return strings.HasPrefix(c.Query, SupervisorCall) }

func (m *callMatrix) begin(t *testing.T) (*Env, *Process) {
	m.runs++
	e := m.s.machine(t)
	return e, e.Start()
}

// strike runs the scenario with a fault, and goes on with and without another Prepare.
func (m *callMatrix) strike(t *testing.T, f callFault) {
	for _, podWanted := range []bool{true, false} {
		e, p := m.begin(t)
		e.Sim.NVML.Answer(f.code, f.match)
		err := m.s.When(e, p)
		if f.lasts && f.code == nvml.Unknown {
			serveOther(e, p, f)
		}
		if f.resets() && f.call.GPU != "" {
			for uid := range e.Claims {
				e.Unprepare(p, uid) // Pods end, so that the node can be drained for the reset.
			}
		}
		if !m.goOn(e, p, f, err, podWanted) {
			return // An earlier run checked both continuations.
		}
	}
}

// hang runs the scenario while a call hangs, then releases it. NVML that does not open, and the supervisor of MPS
// daemons, delay the operation to the limit only.
func (m *callMatrix) hang(t *testing.T, f callFault) {
	e, p := m.begin(t)
	hung := e.Sim.NVML.Hang(f.match)
	done := make(chan error, 1)
	go func() { done <- m.s.When(e, p) }()
	<-hung
	serveOther(e, p, f)
	if f.call.GPU == "" {
		e.Sim.NVML.Expire()
	}
	if f.call.GPU == "" || ofSupervisor(f.call) {
		InTime(e, "the operation", func() error {
			err := <-done
			done <- err
			if ofSupervisor(f.call) && len(m.s.Then) == 0 {
				return err // Unprepare does not need the supervisor.
			}
			return nil
		})
	}
	if f.call.GPU == "" {
		e.Claim("other", fmt.Sprintf("%d 1g.10gb 0", simulatedGPUs-1))
		InTime(e, "a claim of a partition", func() error {
			_, err := p.Prepare(context.Background(), e.Claims["other"])
			if claimerror.KindOf(err) != claimerror.Transient ||
				!strings.Contains(fmt.Sprint(err), "nvmlInit has not answered") {
				return fmt.Errorf("refused with %w", err)
			}
			return nil
		})
		delete(e.Claims, "other")
		if len(hung) > 0 {
			e.T.Errorf("NVML was opened again while it hung: %s", <-hung)
		}
	}
	e.Sim.NVML.Clear()
	m.goOn(e, p, f, <-done, true)
}

// serveOther prepares and unprepares a partition of another GPU, or a whole GPU if NVML itself is at fault.
func serveOther(e *Env, p *Process, f callFault) {
	const uid, last = "other", simulatedGPUs - 1
	device := fmt.Sprint(last)
	switch f.call.GPU {
	case "":
	case e.Sim.State().GPUs[last].UUID:
		return
	default:
		device += " 1g.10gb 0"
	}
	e.Claim(uid, device)
	InTime(e, "a claim of another GPU", func() error {
		_, err := p.Prepare(context.Background(), e.Claims[uid])
		if err == nil {
			err = p.Unprepare(context.Background(), ClaimID(uid))
		}
		return err
	})
	delete(e.Claims, uid)
}

// InTime fails the test if the work waits for the fault to end, or returns an error.
func InTime(e *Env, work string, do func() error) {
	e.T.Helper()
	served := make(chan error, 1)
	go func() { served <- do() }()
	late := time.AfterFunc(10*time.Second, func() {
		e.T.Error(work + " waits")
		e.Sim.NVML.Clear()
	})
	if err := <-served; late.Stop() && err != nil {
		e.T.Errorf("%s fails: %v", work, err)
	}
}

// goOn ends the fault and checks the rest of the claims' lives, unless an earlier run has.
func (m *callMatrix) goOn(e *Env, p *Process, f callFault, err error, podWanted bool) bool {
	if f.resets() {
		e.Sim.reset(f.call.GPU)
		podWanted = false
	}
	e.Sim.NVML.Clear()
	if ofSupervisor(f.call) {
		e.Must(p.EndUnneeded(context.Background()))
	}
	if err == nil && !f.resets() {
		e.CheckClean(p, m.s.Then...)
	}
	if !m.isNew(e.image(), fmt.Sprint(podWanted)) {
		return false
	}
	uids := slices.Sorted(maps.Keys(e.Claims))
	if podWanted {
		var prepared []string
		failed := false
		for _, uid := range uids {
			_, err := p.Prepare(context.Background(), e.Claims[uid])
			switch {
			case err == nil:
				prepared = append(prepared, uid)
			case m.s.Refused || m.s.Unmended:
				failed = true
			default:
				e.T.Fatalf("prepare %s again: %v", uid, err)
			}
		}
		if !failed || m.s.Refused {
			e.CheckClean(p, prepared...)
		}
	}
	for _, uid := range uids {
		e.Unprepare(p, uid)
	}
	e.CheckClean(p)
	return true
}
