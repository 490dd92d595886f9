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
	"gpu-dra-driver/sim/engine"
)

// scenario is an act of which every effect is made to fail, to time out, and is died at.
type scenario struct {
	name    string
	profile string
	reset   bool // --allow-gpu-reset
	given   func(r *rig, p process)
	when    func(r *rig, p process) error
	// then are the claims that are prepared once the act has succeeded; refused says that it cannot.
	then    []string
	refused bool
}

func prepares(uid string) func(*rig, process) error {
	return func(r *rig, p process) error {
		_, err := p.Prepare(context.Background(), r.claims[uid])
		return err
	}
}

func unprepares(uid string) func(*rig, process) error {
	return func(_ *rig, p process) error { return p.Unprepare(context.Background(), claimOf(uid)) }
}

// given makes claims, of which those named are prepared.
func given(claims map[string][]string, prepared ...string) func(*rig, process) {
	return func(r *rig, p process) {
		for _, uid := range slices.Sorted(maps.Keys(claims)) {
			r.claim(uid, claims[uid]...)
		}
		for _, uid := range prepared {
			r.prepare(p, uid)
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
	{name: "again after it vanished", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
	}, when: prepares("a"), then: []string{"a"}},
	{name: "again after its compute instance vanished", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.change(func(s *engine.State) { s.DestroyCompute(&s.GPUs[0], s.GPUs[0].Instances[0].ID, 0) })
	}, when: prepares("a"), then: []string{"a"}},
	{name: "again after the driver was loaded anew", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.change(func(s *engine.State) { s.DriverLoaded = false })
		r.change(func(s *engine.State) { s.DriverLoaded = true })
	}, when: prepares("a"), then: []string{"a"}},
	{name: "after a reboot", given: func(r *rig, p process) {
		given(map[string][]string{"a": {"0 1g.10gb 4", "1 3g.40gb 4"}}, "a")(r, p)
		r.reboot()
	},
		when: prepares("a"), then: []string{"a"}},
	{name: "after a reboot that keeps the mode", profile: "dgx-a100-80", reset: true, given: func(r *rig, p process) { given(one, "a")(r, p); r.reboot() },
		when: prepares("a"), then: []string{"a"}},
	{name: "the first partition of a GPU that is reset for it", profile: "dgx-a100-80", reset: true, given: given(one), when: prepares("a"), then: []string{"a"}},
	{name: "another allocation", given: func(r *rig, p process) { given(one, "a")(r, p); r.claim("a", "0 2g.20gb 4") }, when: prepares("a"), then: []string{"a"}},
	{name: "the whole after partitions", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.must(p.Unprepare(context.Background(), claimOf("a")))
		r.claim("a", "0")
	}, when: prepares("a"), then: []string{"a"}},
	{name: "unprepare the last", given: given(one, "a"), when: unprepares("a")},
	{name: "unprepare one of two", given: given(beside, "a", "z"), when: unprepares("a"), then: []string{"z"}},
	{name: "unprepare two GPUs", given: given(map[string][]string{"a": {"0 1g.10gb 4", "1 7g.80gb 0"}}, "a"), when: unprepares("a")},
	{name: "unprepare over a damaged record", given: func(r *rig, p process) { given(one, "a")(r, p); r.damage("a") }, when: unprepares("a")},
	{name: "unprepare what vanished", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.change(func(s *engine.State) { s.Vanish(&s.GPUs[0], engine.AnyStart) })
	}, when: unprepares("a")},
	{name: "unprepare what another took the place of", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		r.administrator(0, 19, 4, false)
	}, when: unprepares("a")},
	{name: "unprepare on a lost GPU", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.change(func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[0].Instances = true, nil })
	}, when: unprepares("a")},
	{name: "an administrator's partition", given: func(r *rig, p process) { r.administrator(0, 19, 4, false); given(one)(r, p) }, when: prepares("a"), then: []string{"a"}},
	{name: "unprepare an administrator's partition", given: func(r *rig, p process) { r.administrator(0, 19, 4, false); given(one, "a")(r, p) }, when: unprepares("a")},
	{name: "an administrator's partition in the way", refused: true, given: func(r *rig, p process) { r.administrator(0, 14, 4, false); given(one)(r, p) }, when: prepares("a")},
	{name: "an administrator's half partition in the way", refused: true, given: func(r *rig, p process) { r.administrator(0, 19, 4, true); given(one)(r, p) }, when: prepares("a")},
	{name: "beside an administrator's partition", given: func(r *rig, p process) { r.administrator(0, 9, 0, false); given(one)(r, p) }, when: prepares("a"), then: []string{"a"}},
	{name: "an unused mode is put back", given: func(r *rig, p process) {
		given(one, "a")(r, p)
		r.must(p.Unprepare(context.Background(), claimOf("a")))
	}, when: func(r *rig, p process) error {
		g := r.state().GPUs[0]
		_, err := p.Unheld(context.Background(), g.Address, func() error { return p.mig.Restore(context.Background(), whole(g)) })
		return err
	}},
}

var kinds = []hosttest.Kind{hosttest.Fail, hosttest.LoseAnswer, hosttest.CrashBefore, hosttest.CrashAfter}

// begin makes a scenario's machine and the process that acts, with the fault armed.
func (s scenario) begin(t *testing.T, f *hosttest.Faults) (r *rig, p process, died bool, err error) {
	profile := s.profile
	if profile == "" {
		profile = "hgx-h100"
	}
	r = newRig(t, profile)
	r.options.AllowReset = s.reset
	q := r.run()
	s.given(r, q)
	q.host.Close()
	p, err = r.start(f)
	r.must(err)
	f.Arm()
	died, err = hosttest.Run(func() error { return s.when(r, p) })
	f.Disarm()
	return r, p, died, err
}

// settle ends the process, lets a new one recover, then plays the kubelet: the claims that exist are prepared again, if
// that is wanted, and all are unprepared. Nothing may be leaked, lost or foreign touched at any point.
func (s scenario) settle(t *testing.T, r *rig, old process, again bool) {
	t.Helper()
	old.host.Close()
	p := r.run()
	// What it cannot mend is for Prepare or Unprepare: a partition that is gone, an undoing that was cut short.
	_ = p.recover()
	uids := slices.Sorted(maps.Keys(r.claims))
	if again {
		var want []string
		for _, uid := range uids {
			if _, err := p.Prepare(context.Background(), r.claims[uid]); err == nil {
				want = append(want, uid)
			} else if !s.refused && !strings.Contains(s.name, "lost GPU") && !strings.Contains(s.name, "took the place") {
				t.Fatalf("prepare %s again: %v", uid, err)
			}
		}
		if len(want) == len(uids) || s.refused {
			r.clean(p, want...)
		}
	}
	for _, uid := range uids {
		r.must(p.Unprepare(context.Background(), claimOf(uid)))
	}
	r.clean(p)
}

// TestCrashMatrix meets every effect of every scenario, through the machine or through NVML, makes it fail, time out
// though it was done, or kills the process before or after it; and once more at each effect of the Recover that follows.
func TestCrashMatrix(t *testing.T) {
	var mu sync.Mutex
	met := map[string]bool{}
	effects, firsts, seconds := 0, 0, 0
	t.Run("scenario", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				traced := hosttest.Trace()
				r, p, _, err := s.begin(t, traced)
				if (err != nil) != s.refused {
					t.Fatalf("refused: %v", err)
				}
				r.clean(p, s.then...)
				s.settle(t, r, p, true)
				n, m := 0, 0
				for at, o := range traced.Seen() {
					for _, k := range kinds {
						if k == hosttest.LoseAnswer && o.Path != "" {
							continue
						}
						for _, again := range []bool{true, false} {
							r, p, died, err := s.begin(t, hosttest.At(at, k))
							if died != (k == hosttest.CrashBefore || k == hosttest.CrashAfter) {
								t.Fatalf("%s %s: died %v, %v", k, o, died, err)
							}
							if !died && err == nil {
								r.clean(p, s.then...)
							}
							s.settle(t, r, p, again)
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
		r, p, _, _ := s.begin(t, hosttest.At(at, hosttest.CrashBefore))
		p.host.Close()
		f := hosttest.At(j, hosttest.CrashAfter)
		q, err := r.start(f)
		r.must(err)
		f.Arm()
		died, _ := hosttest.Run(func() error { return q.recover() })
		f.Disarm()
		runs++
		s.settle(t, r, q, j%2 == 0)
		if !died || t.Failed() {
			return runs
		}
	}
}
