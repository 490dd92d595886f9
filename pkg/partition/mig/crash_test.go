// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/devicestate/devicestatetest"
	"gpu-dra-driver/sim/engine"
)

type (
	env     = devicestatetest.Env
	process = devicestatetest.Process
)

// scenario is an act of which every effect is made to fail, to time out, and is died at.
type scenario struct {
	name    string
	profile string
	reset   bool // --allow-gpu-reset
	given   func(e *env, p *process)
	when    func(e *env, p *process) error
	// then are the claims that are prepared once the act has succeeded; refused says that it cannot.
	then    []string
	refused bool
}

func prepares(uid string) func(*env, *process) error {
	return func(e *env, p *process) error {
		_, err := p.Prepare(context.Background(), e.Claims[uid])
		return err
	}
}

func unprepares(uid string) func(*env, *process) error {
	return func(_ *env, p *process) error { return p.Unprepare(context.Background(), devicestatetest.ClaimID(uid)) }
}

// given makes claims, of which those named are prepared.
func given(claims map[string][]string, prepared ...string) func(*env, *process) {
	return func(e *env, p *process) {
		for _, uid := range slices.Sorted(maps.Keys(claims)) {
			e.Claim(uid, claims[uid]...)
		}
		for _, uid := range prepared {
			e.Prepare(p, uid)
		}
	}
}

var one = map[string][]string{"a": {"0 1g.10gb 4"}}

var beside = map[string][]string{"a": {"0 3g.40gb 0"}, "z": {"0 1g.10gb 6"}}

var scenarios = []scenario{
	{name: "the first partition of a GPU", given: given(one), when: prepares("a"), then: []string{"a"}},
	{name: "a partition beside another", given: given(beside, "z"), when: prepares("a"), then: []string{"a", "z"}},
	{name: "two partitions of one GPU", given: given(map[string][]string{"a": {"0 1g.10gb 4", "0 2g.20gb 0"}}), when: prepares("a"), then: []string{"a"}},
	{name: "partitions of two GPUs and a whole", given: given(map[string][]string{"a": {"0 1g.10gb 4", "1 7g.80gb 0", "2"}}), when: prepares("a"), then: []string{"a"}},
	{name: "again", given: given(one, "a"), when: prepares("a"), then: []string{"a"}},
	{name: "again after it vanished", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
	}, when: prepares("a"), then: []string{"a"}},
	{name: "again after its compute instance vanished", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.DestroyCompute(&s.GPUs[0], s.GPUs[0].Instances[0].ID, 0) })
	}, when: prepares("a"), then: []string{"a"}},
	{name: "again after the driver was loaded anew", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.DriverLoaded = false })
		e.Sim.Change(func(s *engine.State) { s.DriverLoaded = true })
	}, when: prepares("a"), then: []string{"a"}},
	{name: "after a reboot", given: func(e *env, p *process) {
		given(map[string][]string{"a": {"0 1g.10gb 4", "1 3g.40gb 4"}}, "a")(e, p)
		e.Reboot(false)
	},
		when: prepares("a"), then: []string{"a"}},
	{name: "after a reboot that keeps the mode", profile: "dgx-a100-80", reset: true, given: func(e *env, p *process) { given(one, "a")(e, p); e.Reboot(false) },
		when: prepares("a"), then: []string{"a"}},
	{name: "the first partition of a GPU that is reset for it", profile: "dgx-a100-80", reset: true, given: given(one), when: prepares("a"), then: []string{"a"}},
	{name: "another allocation", given: func(e *env, p *process) { given(one, "a")(e, p); e.Claim("a", "0 2g.20gb 4") }, when: prepares("a"), then: []string{"a"}},
	{name: "the whole after partitions", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Unprepare(p, "a")
		e.Claim("a", "0")
	}, when: prepares("a"), then: []string{"a"}},
	{name: "unprepare the last", given: given(one, "a"), when: unprepares("a")},
	{name: "unprepare one of two", given: given(beside, "a", "z"), when: unprepares("a"), then: []string{"z"}},
	{name: "unprepare two GPUs", given: given(map[string][]string{"a": {"0 1g.10gb 4", "1 7g.80gb 0"}}, "a"), when: unprepares("a")},
	{name: "unprepare over a damaged record", given: func(e *env, p *process) { given(one, "a")(e, p); e.Damage("a") }, when: unprepares("a")},
	{name: "unprepare what vanished", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], engine.AnyStart) })
	}, when: unprepares("a")},
	{name: "unprepare what another took the place of", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		e.Sim.Administrator(0, 19, 4, false)
	}, when: unprepares("a")},
	{name: "unprepare on a lost GPU", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[0].Instances = true, nil })
	}, when: unprepares("a")},
	{name: "an administrator's partition", given: func(e *env, p *process) { e.Sim.Administrator(0, 19, 4, false); given(one)(e, p) }, when: prepares("a"), then: []string{"a"}},
	{name: "unprepare an administrator's partition", given: func(e *env, p *process) { e.Sim.Administrator(0, 19, 4, false); given(one, "a")(e, p) }, when: unprepares("a")},
	{name: "an administrator's partition in the way", refused: true, given: func(e *env, p *process) { e.Sim.Administrator(0, 14, 4, false); given(one)(e, p) }, when: prepares("a")},
	{name: "an administrator's half partition in the way", refused: true, given: func(e *env, p *process) { e.Sim.Administrator(0, 19, 4, true); given(one)(e, p) }, when: prepares("a")},
	{name: "beside an administrator's partition", given: func(e *env, p *process) { e.Sim.Administrator(0, 9, 0, false); given(one)(e, p) }, when: prepares("a"), then: []string{"a"}},
	{name: "an unused mode is put back", given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Unprepare(p, "a")
	}, when: func(e *env, p *process) error {
		g := e.Sim.GPU(0)
		_, err := p.Unheld(context.Background(), g.PCIAddress, func() error { return p.MIG.Restore(context.Background(), g) })
		return err
	}},
}

var kinds = []hosttest.Kind{hosttest.Fail, hosttest.LoseAnswer, hosttest.CrashBefore, hosttest.CrashAfter}

// begin makes a scenario's machine and the process that acts, with the fault armed.
func (s scenario) begin(t *testing.T, f *hosttest.Faults) (e *env, p *process, died bool, err error) {
	profile := s.profile
	if profile == "" {
		profile = "hgx-h100"
	}
	e = devicestatetest.NewSimulated(t, profile)
	e.Sim.MIG.AllowReset = s.reset
	q := e.Start()
	s.given(e, q)
	q.Crash()
	p, err = e.StartWith(f.Do)
	e.Must(err)
	f.Arm()
	died, err = hosttest.Run(func() error { return s.when(e, p) })
	f.Disarm()
	return e, p, died, err
}

// settle ends the *process, lets a new one recover, then plays the kubelet: the claims that exist are prepared again, if
// that is wanted, and all are unprepared. Nothing may be leaked, lost or foreign touched at any point.
func (s scenario) settle(t *testing.T, e *env, old *process, again bool) {
	t.Helper()
	old.Crash()
	p := e.Start()
	// What it cannot mend is for Prepare or Unprepare: a partition that is gone, an undoing that was cut short.
	_ = p.RecoverAll()
	uids := slices.Sorted(maps.Keys(e.Claims))
	if again {
		var want []string
		for _, uid := range uids {
			if _, err := p.Prepare(context.Background(), e.Claims[uid]); err == nil {
				want = append(want, uid)
			} else if !s.refused && !strings.Contains(s.name, "lost GPU") && !strings.Contains(s.name, "took the place") {
				t.Fatalf("prepare %s again: %v", uid, err)
			}
		}
		if len(want) == len(uids) || s.refused {
			e.CheckClean(p, want...)
		}
	}
	for _, uid := range uids {
		e.Unprepare(p, uid)
	}
	e.CheckClean(p)
}

// TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing meets every effect of every scenario, through the machine or through NVML, makes it fail, time out
// though it was done, or kills the process before or after it; and once more at each effect of the Recover that follows.
func TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing(t *testing.T) {
	var mu sync.Mutex
	met := map[string]bool{}
	effects, firsts, seconds := 0, 0, 0
	t.Run("scenario", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				traced := hosttest.Trace()
				e, p, _, err := s.begin(t, traced)
				if (err != nil) != s.refused {
					t.Fatalf("refused: %v", err)
				}
				e.CheckClean(p, s.then...)
				s.settle(t, e, p, true)
				n, m := 0, 0
				for at, o := range traced.Seen() {
					for _, k := range kinds {
						if k == hosttest.LoseAnswer && o.Path != "" {
							continue
						}
						for _, again := range []bool{true, false} {
							e, p, died, err := s.begin(t, hosttest.At(at, k))
							if died != (k == hosttest.CrashBefore || k == hosttest.CrashAfter) {
								t.Fatalf("%s %s: died %v, %v", k, o, died, err)
							}
							if !died && err == nil {
								e.CheckClean(p, s.then...)
							}
							s.settle(t, e, p, again)
							n++
							if t.Failed() {
								t.Fatalf("%s operation %d of %v, prepared again: %v", k, at, traced.Seen(), again)
							}
						}
					}
					m += s.second(t, at)
					if t.Failed() {
						t.Fatalf("crash before operation %d of %v, and in Recover", at, traced.Seen())
					}
				}
				mu.Lock()
				defer mu.Unlock()
				effects, firsts, seconds = effects+len(traced.Seen()), firsts+n, seconds+m
				for _, o := range traced.Seen() {
					if o.Path == "" {
						met[o.String()] = true // NVML's, by its call
					}
					met[string(o.Label)] = true
				}
			})
		}
	})
	t.Logf("crash matrix: %d scenarios, %d effects; %d runs with one fault, %d with a second death in Recover", len(scenarios), effects, firsts, seconds)
	for _, label := range []string{
		"nvml/set-mig-mode", "nvml/create-gpu-instance", "nvml/create-compute-instance", "nvml/destroy-compute-instance",
		"nvml/destroy-gpu-instance", "record.gpu", "record.gpu-remove", "record.intent", "record.commit", "record.releasing",
	} {
		if !met[label] {
			t.Errorf("no scenario met effect %q", label)
		}
	}
}

// second dies before an effect, and again after each effect of Recover.
func (s scenario) second(t *testing.T, at int) (runs int) {
	for j := 0; ; j++ {
		e, p, _, _ := s.begin(t, hosttest.At(at, hosttest.CrashBefore))
		p.Crash()
		f := hosttest.At(j, hosttest.CrashAfter)
		q, err := e.StartWith(f.Do)
		e.Must(err)
		f.Arm()
		died, _ := hosttest.Run(func() error { return q.RecoverAll() })
		f.Disarm()
		runs++
		s.settle(t, e, q, j%2 == 0)
		if !died || t.Failed() {
			return runs
		}
	}
}
