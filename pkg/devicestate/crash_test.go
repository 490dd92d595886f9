// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/devicestate/devicestatetest"
)

type (
	env     = devicestatetest.Env
	process = devicestatetest.Process
)

// scenario is one act of a process whose every effect is made to fail and is died at.
type scenario struct {
	name string
	// given makes the machine, untouched by faults.
	given func(e *env, p *process)
	// when is the act. It gets a new process.
	when func(e *env, p *process) error
	// then are the claims that are prepared once the act has succeeded.
	then []string
	// unknown says that Recover alone cannot tell what a claim holds.
	unknown bool
	// starts says that the act is the start of the process itself.
	starts bool
}

func prepares(uid string) func(*env, *process) error {
	return func(e *env, p *process) error {
		_, err := p.Prepare(context.Background(), e.Claims[uid])
		return err
	}
}

func unprepares(uid string) func(*env, *process) error {
	return func(_ *env, p *process) error {
		return p.Unprepare(context.Background(), devicestatetest.ClaimID(uid))
	}
}

func recovers(_ *env, p *process) error { return p.RecoverAll() }

// Two claims stand by in most scenarios: a (what is acted on) and z, which must come through untouched.
var scenarios = []scenario{
	{name: "start on an empty machine", given: first, when: func(*env, *process) error { return nil }, starts: true},
	{name: "first claim of an empty machine", given: first, when: prepares("a"), then: []string{"a"}, starts: true},
	{name: "prepare one GPU", given: func(e *env, p *process) { standby(e, p); e.Claim("a", "0") }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare two GPUs", given: func(e *env, p *process) { standby(e, p); e.Claim("a", "1", "0") }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare a monitor and a GPU", given: func(e *env, p *process) {
		standby(e, p)
		e.Claim("a", "monitor 3", "0")
	}, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare a monitor of a held GPU", given: func(e *env, p *process) { standby(e, p); e.Claim("a", "monitor 3") }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare with steps", given: func(e *env, p *process) { standby(e, p); e.SteppedClaim("a", "0", "1") }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare without a CDI directory", given: func(e *env, p *process) {
		e.Claim("a", "0")
		e.LoseCDI()
	},
		when: prepares("a"), then: []string{"a"}},
	{name: "prepare again", given: twice, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare again without the spec", given: func(e *env, p *process) {
		twice(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
	}, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare again with another minor number", given: func(e *env, p *process) { twice(e, p); e.Snapshot.GPUs[0].Minor = 7 }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare another allocation", given: func(e *env, p *process) {
		twice(e, p)
		e.Allocate(e.Claims["a"], "1", "2")
	}, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare what is deallocated", given: func(e *env, p *process) { twice(e, p); e.Allocate(e.Claims["a"]) }, when: prepares("a"), then: []string{"z"}},
	{name: "prepare after a reboot", given: func(e *env, p *process) { twice(e, p); e.Reboot(false) }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "unprepare", given: func(e *env, p *process) {
		standby(e, p)
		e.Claim("a", "0")
		e.Prepare(p, "a")
	}, when: unprepares("a"), then: []string{"z"}},
	{name: "unprepare two GPUs with steps", given: twice, when: unprepares("a"), then: []string{"z"}},
	{name: "unprepare after a reboot", given: func(e *env, p *process) { twice(e, p); e.Reboot(true) }, when: unprepares("a"), then: []string{"z"}},
	{name: "unprepare what never was", given: standby, when: unprepares("a"), then: []string{"z"}},
	{name: "recover without specs", given: func(e *env, p *process) {
		twice(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
		e.Must(os.Remove(e.SpecFile("z")))
	},
		when: recovers, then: []string{"a", "z"}},
	{name: "recover after a reboot that kept the specs", given: func(e *env, p *process) { twice(e, p); e.Reboot(true) }, when: recovers, then: []string{"a", "z"}},
	{name: "recover an orphan spec", given: func(e *env, p *process) {
		twice(e, p)
		e.Must(os.Remove(e.RecordFile("a")))
		e.LoseSteps("a")
	}, when: recovers, then: []string{"z"}},
	{name: "recover a damaged record", given: func(e *env, p *process) { twice(e, p); e.Damage("a") }, when: recovers, then: []string{"a", "z"}},
	{name: "prepare over a damaged record", given: func(e *env, p *process) { twice(e, p); e.Damage("a") }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "unprepare a damaged record", given: func(e *env, p *process) { twice(e, p); e.Damage("a") }, when: unprepares("a"), then: []string{"z"}},
	{name: "prepare a group", given: func(e *env, p *process) { standby(e, p); e.GroupClaim("a", 0, 2) }, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare a group with steps", given: func(e *env, p *process) {
		standby(e, p)
		steps(e.GroupClaim("a", 0, 2))
	}, when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare a group again without its file", given: func(e *env, p *process) {
		grouped(e, p)
		e.Must(os.Remove(e.TopologyFile("a")))
	},
		when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare a group again after a link failed", given: func(e *env, p *process) {
		grouped(e, p)
		e.Snapshot.GPUs[1].Links = nil
	},
		when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare a group after a reboot that changed the wiring", given: func(e *env, p *process) {
		grouped(e, p)
		e.Reboot(false)
		e.Snapshot.GPUs[1].Links = nil
	},
		when: prepares("a"), then: []string{"a", "z"}},
	{name: "prepare a GPU instead of a group", given: func(e *env, p *process) {
		grouped(e, p)
		e.Allocate(e.Claims["a"], "0")
	},
		when: prepares("a"), then: []string{"a", "z"}},
	{name: "unprepare a group", given: grouped, when: unprepares("a"), then: []string{"z"}},
	{name: "recover a group without specs", given: func(e *env, p *process) {
		grouped(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
		e.Must(os.Remove(e.TopologyFile("a")))
	}, when: recovers, then: []string{"a", "z"}},
	{name: "recover a group's file without spec and record", given: func(e *env, p *process) {
		grouped(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
		e.Must(os.Remove(e.RecordFile("a")))
		e.LoseSteps("a")
	}, when: recovers, then: []string{"z"}},
	{name: "recover a group's damaged record", given: func(e *env, p *process) { grouped(e, p); e.Damage("a") }, when: recovers, then: []string{"a", "z"}},
	{name: "prepare a group whose record and spec are both lost", given: func(e *env, p *process) {
		grouped(e, p)
		e.Damage("a")
		e.Must(os.Remove(e.SpecFile("a")))
	}, when: prepares("a"), then: []string{"a", "z"}, unknown: true},
	{name: "recover a record and spec both lost", given: lost, when: func(e *env, p *process) error {
		return errors.Join(p.RecoverAll(), e.Identify(p), p.RecoverAll())
	},
		then: []string{"a", "z"}, unknown: true},
	{name: "prepare a record and spec both lost", given: lost, when: prepares("a"), then: []string{"a", "z"}, unknown: true},
	{name: "unprepare a record and spec both lost", given: func(e *env, p *process) {
		standby(e, p)
		e.Claim("a", "0")
		e.Prepare(p, "a")
		e.Damage("a")
		e.Must(os.Remove(e.SpecFile("a")))
	},
		when: unprepares("a"), then: []string{"z"}, unknown: true},
}

func first(e *env, _ *process) { e.SteppedClaim("a", "0", "1") }

func standby(e *env, p *process) {
	e.SteppedClaim("z", "3")
	e.Prepare(p, "z")
}

func steps(c *resourceapi.ResourceClaim) {
	c.Labels = map[string]string{devicestatetest.Stepped: string(c.UID)}
}

func grouped(e *env, p *process) {
	standby(e, p)
	steps(e.GroupClaim("a", 0, 2))
	e.Prepare(p, "a")
}

func twice(e *env, p *process) {
	standby(e, p)
	e.SteppedClaim("a", "0", "1")
	e.Prepare(p, "a")
}

func lost(e *env, p *process) {
	twice(e, p)
	e.Damage("a")
	e.Must(os.Remove(e.SpecFile("a")))
}

// begin makes a scenario's machine and the process that will act, with the faults armed.
func (s scenario) begin(t *testing.T, f *hosttest.Faults, cutsPower bool) (*env, *process, bool, error) {
	e := devicestatetest.New(t)
	if s.starts {
		s.given(e, nil)
	} else {
		p := e.Start()
		s.given(e, p)
		p.Crash()
	}
	if cutsPower {
		e.Disk = hosttest.NewDisk(e.Dir)
	}
	if s.starts {
		f.Arm()
	}
	var p *process
	died, err := hosttest.Run(func() (err error) { p, err = e.StartWith(f.Do); return err })
	if died || err != nil {
		return e, p, died, err
	}
	if !s.starts {
		f.Arm()
	}
	died, err = hosttest.Run(func() error { return s.when(e, p) })
	return e, p, died, err
}

// settle ends the process and lets a new one recover.
func (s scenario) settle(t *testing.T, e *env, old *process) *process {
	old.Crash()
	p := e.Start()
	if err := p.RecoverAll(); err != nil {
		t.Fatal("recover:", err)
	}
	return p
}

// kubelet plays what comes after a crash: unless only ending is wanted, the claims that exist are prepared again, and
// each is verified; then all are unprepared and nothing may be left.
func (s scenario) kubelet(t *testing.T, e *env, p *process, again bool) {
	t.Helper()
	uids := slices.Sorted(maps.Keys(e.Claims))
	if again {
		var want []string
		for _, uid := range uids {
			devices, err := p.Prepare(context.Background(), e.Claims[uid])
			e.Must(err)
			if len(devices) > 0 {
				want = append(want, uid)
			}
		}
		e.CheckClean(p, want...)
	}
	for _, uid := range uids {
		e.Unprepare(p, uid)
	}
	if !again && s.unknown {
		// Nobody knew the steps of what was lost; the executor's own observation finds them, not the engine.
		e.Empty(e.StepFiles, "")
	}
	e.CheckClean(p)
}

// TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing meets every effect of every scenario, makes it fail or kills the process before or after it, starts
// anew and sees that nothing is leaked, nothing lost and nothing foreign touched; and once more for each effect of the
// Recover that follows.
func TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing(t *testing.T) {
	all := matrix{met: map[string]bool{}}
	t.Run("scenario", func(t *testing.T) { all.run(t) })
	t.Logf("crash matrix: %d scenarios, %d operations; %d runs with one fault, %d with a second death in Recover",
		len(scenarios), all.operations, all.firsts, all.seconds)
	for _, label := range labels(t) {
		if !all.met[label] {
			t.Errorf("no scenario met effect %q", label)
		}
	}
}

// matrix counts.
type matrix struct {
	mu                          sync.Mutex
	met                         map[string]bool
	operations, firsts, seconds int
}

func (all *matrix) run(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			m := &matrix{met: map[string]bool{}}
			defer all.add(m)
			traced := hosttest.Trace()
			e, p, _, err := s.begin(t, traced, false)
			e.Must(err)
			e.CheckClean(s.settle(t, e, p), s.then...)
			seen := traced.Seen()
			m.operations += len(seen)
			for _, o := range seen {
				m.met[string(o.Label)] = true
			}
			for i, o := range seen {
				for _, k := range []hosttest.Kind{hosttest.Fail, hosttest.CrashBefore, hosttest.CrashAfter} {
					for _, again := range []bool{true, false} {
						m.first(t, s, i, k, again)
						if t.Failed() {
							t.Fatalf("%s operation %d, %s %s, prepared again: %v", k, i, o, o.Path, again)
						}
					}
				}
				// Dying after one effect is dying before the next, and a sync leaves what it found: a process sees no other
				// disk after it. That spares most of the pairs.
				if i > 0 && isSync(seen[i-1]) {
					continue
				}
				m.second(t, s, i)
				if t.Failed() {
					t.Fatalf("crash before operation %d, %s %s, and in Recover", i, o, o.Path)
				}
			}
		})
	}
}

func (all *matrix) add(m *matrix) {
	all.mu.Lock()
	defer all.mu.Unlock()
	maps.Copy(all.met, m.met)
	all.operations, all.firsts, all.seconds = all.operations+m.operations, all.firsts+m.firsts, all.seconds+m.seconds
}

// first is a run with one fault.
func (m *matrix) first(t *testing.T, s scenario, at int, k hosttest.Kind, again bool) {
	e, p, died, err := s.begin(t, hosttest.At(at, k), false)
	if died != (k != hosttest.Fail) {
		t.Errorf("died: %v, %v", died, err)
		return
	}
	if p != nil {
		if k == hosttest.Fail && err == nil && !s.unknown {
			// A fault that the caller is not told of must not have made a difference.
			e.CheckClean(p, s.then...)
		}
		p.Crash()
	}
	m.firsts++
	s.after(t, e, again)
}

// second is a run that dies, and dies again at each effect of Recover.
func (m *matrix) second(t *testing.T, s scenario, at int) {
	var last []host.Operation
	for j := 0; ; j++ {
		for j < len(last) && isSync(last[j]) {
			j++
		}
		if last != nil && j >= len(last) {
			return
		}
		e, p, _, _ := s.begin(t, hosttest.At(at, hosttest.CrashBefore), false)
		if p != nil {
			p.Crash()
		}
		f := hosttest.At(j, hosttest.CrashAfter)
		if last == nil {
			f = hosttest.Trace() // First see what Recover does here.
			j = -1
		}
		q, err := e.StartWith(f.Do)
		e.Must(err)
		f.Arm()
		died, _ := hosttest.Run(func() error { return q.RecoverAll() })
		q.Crash()
		if last == nil {
			last = f.Seen()
			for _, o := range last {
				m.met[string(o.Label)] = true
			}
			if len(last) == 0 {
				return
			}
			continue
		}
		if !died {
			t.Errorf("no death at effect %d of Recover", j)
		}
		m.seconds++
		s.after(t, e, true)
		if t.Failed() {
			t.Logf("died again after operation %d of Recover, %s", j, f.Seen()[j])
			return
		}
	}
}

func isSync(o host.Operation) bool { return o.Call == host.CallSync || o.Call == host.CallSyncDir }

// after is a new process that recovers, checks and plays the kubelet.
func (s scenario) after(t *testing.T, e *env, again bool) {
	t.Helper()
	p := s.settle(t, e, nil)
	if !s.unknown {
		if err := p.Check(); err != nil {
			t.Fatal("after Recover:", err)
		}
		if temps := e.Unfinished(); len(temps) > 0 {
			t.Fatal("after Recover, unfinished:", strings.Join(temps, " "))
		}
		if second, err := p.Recover(context.Background()); err != nil || len(second) > 0 {
			t.Fatalf("a second Recover found work: %+v, %v", second, err)
		}
	}
	s.kubelet(t, e, p, again)
	p.Crash()
	e.Must(os.RemoveAll(e.Dir))
}
