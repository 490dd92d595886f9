// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/seedtest"
)

// Scenario is one operation of a process. The crash matrix fails and crashes each host operation in it.
type Scenario struct {
	Name string
	// New creates the machine; nil means New.
	New func(testing.TB) *Env
	// Given prepares the machine, without faults.
	Given func(e *Env, p *Process)
	// When runs the operation in a new process.
	When func(e *Env, p *Process) error
	// Then are the claims that are prepared after a success.
	Then []string
	// Starts means that the operation includes the start of the process. Given gets no process then.
	Starts bool
	// Unknown means that Recover alone cannot find the devices of a claim.
	Unknown bool
	// Refused means that the operation fails, Unmended that not all its claims can be prepared again.
	Refused, Unmended bool

	// initial is the machine after Given. Without it machine runs Given.
	initial *image
}

// machine creates a scenario's machine.
func (s Scenario) machine(t *testing.T) *Env {
	if s.initial != nil {
		return s.initial.machine()
	}
	make := s.New
	if make == nil {
		make = New
	}
	e := make(t)
	e.clockStands = true
	if s.Starts {
		s.Given(e, nil)
	} else {
		q := e.start()
		s.Given(e, q)
		q.Crash()
	}
	return e
}

// begin creates a scenario's machine, and runs the operation in a new process with faults armed.
func (s Scenario) begin(
	t *testing.T, f *hosttest.Faults, cutsPower bool,
) (e *Env, p *Process, crashed bool, err error) {
	e = s.machine(t)
	if cutsPower {
		e.Disk = hosttest.NewDisk(e.Dir)
	}
	if s.Starts {
		f.Arm()
	}
	crashed, err = hosttest.Run(func() (err error) { p, err = e.StartWith(f.Do); return err })
	if crashed || err != nil {
		return e, p, crashed, err
	}
	if !s.Starts {
		f.Arm()
	}
	crashed, err = hosttest.Run(func() error { return s.When(e, p) })
	f.Disarm()
	return e, p, crashed, err
}

// recovered starts a process and recovers.
func (s Scenario) recovered(e *Env) *Process {
	e.T.Helper()
	p := e.start()
	// Prepare or Unprepare repairs a missing partition and an interrupted undo.
	if err := p.RecoverAll(); err != nil && e.Sim == nil {
		e.T.Fatal("recover:", err)
	}
	return p
}

// after starts a new process, recovers, and unprepares all claims, as the kubelet does after a crash. If their pods are
// still wanted, it prepares the claims first. It checks each time that nothing leaked or was lost, and that external
// devices are unchanged.
func (s Scenario) after(e *Env, podWanted bool) {
	e.T.Helper()
	p := s.recovered(e)
	if e.Sim == nil && !s.Unknown {
		if err := p.Check(); err != nil {
			e.T.Fatal("after Recover:", err)
		}
		if files := e.Unfinished(); len(files) > 0 {
			e.T.Fatal("after Recover, unfinished:", strings.Join(files, " "))
		}
		if second, err := p.Recover(context.Background()); err != nil || len(second) > 0 {
			e.T.Fatalf("a second Recover found work: %+v, %v", second, err)
		}
	}
	uids := slices.Sorted(maps.Keys(e.Claims))
	if podWanted {
		var prepared []string
		failed := false
		for _, uid := range uids {
			devices, err := p.Prepare(context.Background(), e.Claims[uid])
			if failed = failed || err != nil; err != nil && !s.Refused && !s.Unmended {
				e.T.Fatalf("prepare %s again: %v", uid, err)
			}
			if len(devices) > 0 {
				prepared = append(prepared, uid)
			}
		}
		if !failed || s.Refused {
			e.CheckClean(p, prepared...)
		}
	}
	for _, uid := range uids {
		e.Unprepare(p, uid)
	}
	if !podWanted && s.Unknown {
		// The steps of the lost record are unknown to the engine; only the executor's checks find them.
		e.Empty(e.StepFiles, "")
	}
	e.CheckClean(p)
	e.CheckRestored(p)
	p.Crash()
	e.Must(os.RemoveAll(e.Dir))
}

// crashMatrix counts runs, of one scenario or of all.
type crashMatrix struct {
	mu                                      sync.Mutex
	met                                     map[string]bool
	operations, singles, recoveries, states int
	// checked holds the states that a run has checked, by kind of continuation. Equal states continue equally.
	checked map[string]bool
}

// isNew reports whether no run has checked this continuation of the machine yet, and marks it.
func (m *crashMatrix) isNew(i *image, future string) bool {
	key := future + " " + i.state()
	if m.checked[key] {
		return false
	}
	m.checked[key] = true
	m.states++
	return true
}

// RunCrashMatrix fails or crashes every operation of every scenario with each kind of fault, starts a new process, and
// checks that nothing leaked or was lost. It also crashes before each operation and again after each operation of the
// following Recover. Each listed label, and each operation such as "nvml/set-mig-mode", must occur.
func RunCrashMatrix(t *testing.T, scenarios []Scenario, kinds []hosttest.Kind, labels []string) {
	all := &crashMatrix{met: map[string]bool{}}
	t.Run("scenario", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				m := &crashMatrix{met: map[string]bool{}, checked: map[string]bool{}}
				m.run(t, s, kinds)
				all.mu.Lock()
				defer all.mu.Unlock()
				maps.Copy(all.met, m.met)
				all.operations, all.singles = all.operations+m.operations, all.singles+m.singles
				all.recoveries, all.states = all.recoveries+m.recoveries, all.states+m.states
			})
		}
	})
	t.Logf("crash matrix: %d scenarios, %d operations; %d runs with one fault, %d with a second crash in Recover; "+
		"%d states",
		len(scenarios), all.operations, all.singles, all.recoveries, all.states)
	for _, label := range labels {
		if !all.met[label] && !testing.Short() { // Some are of recoveries.
			t.Errorf("no scenario met operation %q", label)
		}
	}
}

func (m *crashMatrix) meet(operations []host.Operation) {
	for _, o := range operations {
		m.met[string(o.Label)], m.met[o.String()] = true, true
	}
}

func (m *crashMatrix) run(t *testing.T, s Scenario, kinds []hosttest.Kind) {
	s.initial = s.machine(t).image()
	trace := hosttest.Trace()
	e, p, _, err := s.begin(t, trace, false)
	if (err != nil) != s.Refused {
		t.Fatalf("refused: %v", err)
	}
	if e.Sim == nil {
		p.Crash()
		p = s.recovered(e)
	}
	e.CheckClean(p, s.Then...)
	p.Crash()
	s.after(e, true)
	seen := trace.Seen()
	m.operations = len(seen)
	m.meet(seen)
	for i, o := range seen {
		if !seedtest.Chosen(fmt.Sprint(s.Name, i)) {
			continue
		}
		for _, kind := range kinds {
			if kind == hosttest.LoseAnswer && o.Path != "" {
				continue // A system call cannot lose its answer.
			}
			m.singles++
			m.strike(t, s, i, kind)
			if t.Failed() {
				t.Fatalf("%s operation %d, %s %s", kind, i, o, o.Path)
			}
		}
		crashed := s.crashBefore(t, i)
		m.fillDisk(t, s, i, crashed)
		if t.Failed() {
			t.Fatalf("full disk from operation %d, %s %s", i, o, o.Path)
		}
		m.crashInRecover(t, s, crashed)
		if t.Failed() {
			t.Fatalf("crash before operation %d, %s %s, and in Recover", i, o, o.Path)
		}
	}
}

// strike runs a scenario with one fault. Then a new process recovers, with and without another Prepare.
func (m *crashMatrix) strike(t *testing.T, s Scenario, at int, kind hosttest.Kind) {
	e, p, crashed, err := s.begin(t, hosttest.At(at, kind), false)
	if crashed != (kind == hosttest.CrashBefore || kind == hosttest.CrashAfter) {
		t.Errorf("crashed: %v, %v", crashed, err)
		return
	}
	if p != nil && !crashed && err == nil && !s.Unknown {
		// A fault that the caller does not see must have no effect.
		e.CheckClean(p, s.Then...)
	}
	p.Crash()
	struck := e.image()
	m.after(s, e, struck, true)
	m.after(s, nil, struck, false)
}

// after checks one continuation of a machine, unless an earlier run has. Without the machine it creates it from the
// image.
func (m *crashMatrix) after(s Scenario, e *Env, i *image, podWanted bool) {
	i.env.T.Helper()
	if !m.isNew(i, fmt.Sprint(podWanted)) {
		return
	}
	if e == nil {
		e = i.machine()
	}
	s.after(e, podWanted)
}

// crashBefore returns the machine after a crash before an operation.
func (s Scenario) crashBefore(t *testing.T, at int) *image {
	e, p, _, _ := s.begin(t, hosttest.At(at, hosttest.CrashBefore), false)
	p.Crash()
	return e.image()
}

// fillDisk finds the disk full from an operation on, or after a crash before it. While it is full, Unprepare succeeds.
func (m *crashMatrix) fillDisk(t *testing.T, s Scenario, at int, crashed *image) {
	e, p, _, _ := s.begin(t, hosttest.At(at, hosttest.DiskFull), false)
	p.Crash()
	for _, i := range []*image{e.image(), crashed} {
		if !m.isNew(i, "full disk") {
			continue
		}
		e := i.machine()
		full := hosttest.FullDisk([]error{syscall.ENOSPC, syscall.EDQUOT}[at%2])
		q, err := e.StartWith(full.Do)
		e.Must(err)
		full.Arm()
		_ = q.RecoverAll() // It needs space to rewrite a spec or to rebuild a record.
		for _, uid := range slices.Sorted(maps.Keys(e.Claims)) {
			e.Unprepare(q, uid)
		}
		if s.Unknown {
			e.Empty(e.StepFiles, "")
		}
		e.CheckClean(q)
		q.Crash()
		e.Must(os.RemoveAll(e.Dir))
	}
}

// crashInRecover crashes after each operation of Recover on a machine after a crash. One Recover shows all these
// machines: its operations come one after the other, and a crash leaves the machine as it is then.
func (m *crashMatrix) crashInRecover(t *testing.T, s Scenario, crashed *image) {
	if !m.isNew(crashed, "crash in Recover") {
		return
	}
	e, trace := crashed.machine(), hosttest.Trace()
	var crashes []*image
	q, err := e.StartWith(func(o host.Operation, do func() error) error {
		err := trace.Do(o, do)
		if len(trace.Seen()) > len(crashes) {
			crashes = append(crashes, e.image())
		}
		return err
	})
	e.Must(err)
	trace.Arm()
	_ = q.RecoverAll() // Prepare or Unprepare repairs a missing partition and an interrupted undo.
	trace.Disarm()
	q.Crash()
	m.after(s, e, e.image(), true)
	m.meet(trace.Seen())
	for j, o := range trace.Seen() {
		m.recoveries++
		m.after(s, nil, crashes[j], e.Sim == nil || j%2 == 0)
		if t.Failed() {
			t.Logf("crashed again after operation %d of Recover, %s", j, o)
			return
		}
	}
}
