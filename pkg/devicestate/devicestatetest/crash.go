// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
)

// Scenario is one act of a process. The crash matrix makes every operation of the act fail, and crashes at each.
type Scenario struct {
	Name string
	// New makes the machine; nil for New.
	New func(testing.TB) *Env
	// Given prepares the machine, without faults.
	Given func(e *Env, p *Process)
	// When is the act of a new process.
	When func(e *Env, p *Process) error
	// Then are the claims that are prepared once the act has succeeded.
	Then []string
	// Starts says that the act begins with the start of the process. Given gets no process then.
	Starts bool
	// Unknown says that Recover alone cannot tell which devices a claim holds.
	Unknown bool
	// Refused says that the act fails, Unmended that its claims cannot all be prepared again.
	Refused, Unmended bool
}

// begin makes a scenario's machine and the process that acts, with the faults armed during the act.
func (s Scenario) begin(t *testing.T, f *hosttest.Faults, cutsPower bool) (e *Env, p *Process, crashed bool, err error) {
	make := s.New
	if make == nil {
		make = New
	}
	e = make(t)
	if s.Starts {
		s.Given(e, nil)
	} else {
		q := e.Start()
		s.Given(e, q)
		q.Crash()
	}
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

// recovered is a new process that has recovered.
func (s Scenario) recovered(e *Env) *Process {
	e.T.Helper()
	p := e.Start()
	// A partition that is gone, or an undoing that was cut short, is for Prepare or Unprepare to mend.
	if err := p.RecoverAll(); err != nil && e.Sim == nil {
		e.T.Fatal("recover:", err)
	}
	return p
}

// after starts a new process, which recovers, and does what the kubelet does after a crash: it prepares the claims again
// if that is wanted, and then unprepares them all. At no point may anything be leaked, lost, or external and touched.
func (s Scenario) after(e *Env, again bool) {
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
	if again {
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
	if !again && s.Unknown {
		// Nobody knew the steps of the lost record: its executor's own checks find them, not the engine.
		e.Empty(e.StepFiles, "")
	}
	e.CheckClean(p)
	p.Crash()
	e.Must(os.RemoveAll(e.Dir))
}

// crashMatrix counts.
type crashMatrix struct {
	mu                              sync.Mutex
	met                             map[string]bool
	operations, singles, recoveries int
}

// RunCrashMatrix strikes at every operation of every scenario with each kind of fault, starts a new process, and checks
// that nothing is leaked or lost. It also crashes before each operation and again after each operation of the Recover that
// follows. Each label, and each operation such as "nvml/set-mig-mode", that the caller lists must have been met.
func RunCrashMatrix(t *testing.T, scenarios []Scenario, kinds []hosttest.Kind, labels []string) {
	all := &crashMatrix{met: map[string]bool{}}
	t.Run("scenario", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.Name, func(t *testing.T) {
				t.Parallel()
				m := &crashMatrix{met: map[string]bool{}}
				m.run(t, s, kinds)
				all.mu.Lock()
				defer all.mu.Unlock()
				maps.Copy(all.met, m.met)
				all.operations, all.singles, all.recoveries = all.operations+m.operations, all.singles+m.singles, all.recoveries+m.recoveries
			})
		}
	})
	t.Logf("crash matrix: %d scenarios, %d operations; %d runs with one fault, %d with a second crash in Recover",
		len(scenarios), all.operations, all.singles, all.recoveries)
	for _, label := range labels {
		if !all.met[label] {
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
		for _, kind := range kinds {
			if kind == hosttest.LoseAnswer && o.Path != "" {
				continue // A system call's answer is not lost.
			}
			for _, again := range []bool{true, false} {
				m.singles++
				s.strike(t, hosttest.At(i, kind), kind, again)
				if t.Failed() {
					t.Fatalf("%s operation %d, %s %s, prepared again: %v", kind, i, o, o.Path, again)
				}
			}
		}
		// A crash after one operation is a crash before the next, and a process sees no difference after a sync. That
		// spares most of the pairs.
		if e.Sim == nil && i > 0 && isSync(seen[i-1]) {
			continue
		}
		m.crashInRecover(t, s, i)
		if t.Failed() {
			t.Fatalf("crash before operation %d, %s %s, and in Recover", i, o, o.Path)
		}
	}
}

func isSync(o host.Operation) bool { return o.Call == host.CallSync || o.Call == host.CallSyncDir }

// strike is a run with one fault.
func (s Scenario) strike(t *testing.T, f *hosttest.Faults, kind hosttest.Kind, again bool) {
	e, p, crashed, err := s.begin(t, f, false)
	if crashed != (kind == hosttest.CrashBefore || kind == hosttest.CrashAfter) {
		t.Errorf("crashed: %v, %v", crashed, err)
		return
	}
	if p != nil && !crashed && err == nil && !s.Unknown {
		// A fault that the caller does not see must not have made a difference.
		e.CheckClean(p, s.Then...)
	}
	p.Crash()
	s.after(e, again)
}

// crashInRecover crashes before an operation, and again after each operation of Recover.
func (m *crashMatrix) crashInRecover(t *testing.T, s Scenario, at int) {
	run := func(f *hosttest.Faults) (*Env, bool) {
		e, p, _, _ := s.begin(t, hosttest.At(at, hosttest.CrashBefore), false)
		p.Crash()
		q, err := e.StartWith(f.Do)
		e.Must(err)
		f.Arm()
		crashed, _ := hosttest.Run(q.RecoverAll)
		f.Disarm()
		q.Crash()
		return e, crashed
	}
	trace := hosttest.Trace()
	e, _ := run(trace)
	s.after(e, true)
	m.meet(trace.Seen())
	for j, o := range trace.Seen() {
		if e.Sim == nil && isSync(o) {
			continue
		}
		m.recoveries++
		e, crashed := run(hosttest.At(j, hosttest.CrashAfter))
		if !crashed {
			t.Errorf("no crash at operation %d of Recover", j)
		}
		s.after(e, e.Sim == nil || j%2 == 0)
		if t.Failed() {
			t.Logf("crashed again after operation %d of Recover, %s", j, o)
			return
		}
	}
}
