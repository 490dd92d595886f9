// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

// usage implements devicestate.Usage with fixed answers.
type usage struct {
	named   map[string]bool // by UID
	holder  string
	err     error
	asked   int
	devices []plan.Device
	// opened is called by OpenedBy; nil for nothing.
	opened func()
}

func (x *usage) ReferencedByKubelet(context.Context) (func(plan.Claim) bool, error) {
	x.asked++
	return func(c plan.Claim) bool { return x.named[c.UID] }, x.err
}

func (x *usage) OpenedBy(_ context.Context, devices []plan.Device) (string, error) {
	x.devices = devices
	if x.opened != nil {
		x.opened()
	}
	return x.holder, nil
}

const grace = time.Minute

// deletion is a machine with the DeletedClaims of its process.
type deletion struct {
	*devicestatetest.Env
	process *process
	*devicestate.DeletedClaims
	server *devicestatetest.APIServer
	usage  *usage
}

// vanishing returns a machine with prepared claims a and b. Claim a was force-deleted from the API server.
func vanishing(t *testing.T) *deletion {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.Claim("b", "1")
	e.Prepare(p, "a")
	e.Prepare(p, "b")
	delete(e.Claims, "a")
	l := &deletion{Env: e, server: &devicestatetest.APIServer{Env: e}, usage: &usage{}}
	l.restart(p)
	return l
}

// restart continues with another process. Its DeletedClaims starts every grace period again.
func (l *deletion) restart(p *process) {
	l.process = p
	l.DeletedClaims = devicestate.NewDeletedClaims(p.Engine, l.server, l.usage, grace)
}

// after advances the clock and runs Release.
func (l *deletion) after(d time.Duration) []devicestate.Finding {
	l.T.Helper()
	l.Now = l.Now.Add(d)
	findings, err := l.Release(context.Background())
	l.Must(err)
	return findings
}

func (l *deletion) kept(findings []devicestate.Finding) {
	l.T.Helper()
	for _, f := range findings {
		if f.Did != "" {
			l.T.Fatalf("released: %+v", f)
		}
	}
	l.CheckClean(l.process, "a", "b")
}

func (l *deletion) released(findings []devicestate.Finding) {
	l.T.Helper()
	if len(findings) != 1 || findings[0].Did == "" || findings[0].Err != nil || findings[0].Claim.UID != "a" {
		l.T.Fatalf("findings %+v", findings)
	}
	l.CheckClean(l.process, "b")
}

// TestRelease_MonitorsPool_IsThisNodes has a claim whose only device is of the pool of monitor devices.
func TestRelease_MonitorsPool_IsThisNodes(t *testing.T) {
	l := vanishing(t)
	l.Claim("m", "monitor 2")
	l.Prepare(l.process, "m")
	l.after(0)
	for _, f := range append(l.after(grace), l.after(grace)...) {
		if f.Claim.UID != "a" {
			t.Errorf("%+v", f)
		}
	}
	l.CheckClean(l.process, "b", "m")
}

func TestRelease_ClaimGoneForGrace_Releases(t *testing.T) {
	l := vanishing(t)
	l.kept(l.after(0))
	l.kept(l.after(grace - time.Second))
	if l.server.Gets > 0 {
		t.Errorf("%d claims were read past the cache within the grace period", l.server.Gets)
	}
	l.released(l.after(time.Second))
	if len(l.usage.devices) != 1 || l.usage.devices[0].PCIAddress != devicestatetest.Address(0) {
		t.Errorf("asked for holders of %+v", l.usage.devices)
	}
	if f := l.after(grace); len(f) > 0 {
		t.Errorf("a second release: %+v", f)
	}
}

func TestRelease_APIServerDown_Keeps(t *testing.T) {
	l := vanishing(t)
	l.kept(l.after(0))
	l.server.Down = errors.New("connection refused")
	l.kept(l.after(2 * grace))
	l.kept(l.after(2 * grace))
	l.server.Down = nil
	// The grace period starts again, because the claim could have existed meanwhile.
	l.kept(l.after(grace))
	l.released(l.after(grace))
}

func TestRelease_APIServerHangs_AsksOnceARound(t *testing.T) {
	l := vanishing(t)
	delete(l.Env.Claims, "b")
	l.server.Down = fmt.Errorf("get the claim: %w", context.DeadlineExceeded)
	for range 3 {
		l.kept(l.after(2 * grace))
	}
	if l.server.CachedGets != 3 {
		t.Errorf("%d calls in three rounds", l.server.CachedGets)
	}
	l.server.Down = nil
	l.kept(l.after(0))
	if f := l.after(grace); len(f) != 2 {
		t.Errorf("findings %+v", f)
	}
}

func TestRelease_ClaimReturns_Keeps(t *testing.T) {
	l := vanishing(t)
	l.kept(l.after(0))
	l.SteppedClaim("a", "0")
	l.kept(l.after(grace))
	delete(l.Env.Claims, "a")
	l.kept(l.after(grace))
	l.released(l.after(grace))
}

func TestRelease_ClaimInUse_KeepsAndReports(t *testing.T) {
	for name, test := range map[string]usage{
		"kubelet unknown":   {err: errors.New("permission denied")},
		"process holds it":  {holder: "process 4711 (python)"},
		"both and an error": {named: map[string]bool{"a": true}, holder: "process 1", err: errors.New("x")},
	} {
		t.Run(name, func(t *testing.T) {
			l := vanishing(t)
			*l.usage = test
			l.kept(l.after(0))
			for range 3 {
				findings := l.after(grace)
				l.kept(findings)
				if len(findings) == 0 { // After a report the grace period starts again.
					findings = l.after(grace)
				}
				if len(findings) != 1 || findings[0].Err == nil {
					t.Fatalf("not reported: %+v", findings)
				}
			}
			*l.usage = usage{}
			l.kept(l.after(0))
			l.released(l.after(grace))
		})
	}
}

func TestRelease_KubeletKnowsClaims_DoesNotAskAPIServer(t *testing.T) {
	l := vanishing(t)
	l.usage.named = map[string]bool{"a": true, "b": true}
	for range 3 {
		l.kept(l.after(grace))
	}
	if l.server.Gets+l.server.CachedGets > 0 || l.usage.asked != 3 {
		t.Errorf("%d calls of the API server and %d of the kubelet in three rounds, want none and 3", l.server.Gets+l.server.CachedGets, l.usage.asked)
	}
	delete(l.usage.named, "a") // Its pod ended without an Unprepare.
	l.kept(l.after(0))
	l.released(l.after(grace))
	if l.server.Gets != 1 || l.server.CachedGets != 2 {
		t.Errorf("%d reads and %d of the cache for one claim, want 1 and 2", l.server.Gets, l.server.CachedGets)
	}
}

func TestRelease_CacheLags_Keeps(t *testing.T) {
	l := vanishing(t)
	l.SteppedClaim("a", "0")
	l.server.Cached = devicestate.ErrNoClaim
	for range 3 {
		l.kept(l.after(grace))
	}
}

func TestRelease_NoDeviceOfThisNode_Releases(t *testing.T) {
	for name, change := range map[string]func(e *env){
		"deallocated":    func(e *env) { e.Claim("a").Status.Allocation = nil },
		"another node's": func(e *env) { e.Claim("a", "0").Status.Allocation.Devices.Results[0].Pool = "node-2/gpu" },
	} {
		t.Run(name, func(t *testing.T) {
			l := vanishing(t)
			change(l.Env)
			l.kept(l.after(0))
			l.released(l.after(grace))
		})
	}
}

// TestRelease_ClaimPreparedAgainMeanwhile_StaysPrepared: a claim without allocation gets its old device again, while
// Release looks for its users.
func TestRelease_ClaimPreparedAgainMeanwhile_StaysPrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := vanishing(t)
		allocated := l.SteppedClaim("a", "0")
		l.Env.Claims["a"] = allocated.DeepCopy()
		l.Env.Claims["a"].Status.Allocation = nil
		prepared := make(chan error, 1)
		l.usage.opened = func() {
			l.Env.Claims["a"] = allocated
			go func() {
				_, err := l.process.Prepare(t.Context(), allocated)
				prepared <- err
			}()
			synctest.Wait() // Prepare has ended, or waits for Release.
		}
		l.kept(l.after(0))
		l.after(grace)
		l.Must(<-prepared)
		l.CheckClean(l.process, "a", "b")
	})
}

// TestRelease_RecordOfEarlierBoot_WaitsForAPIServerOnly deletes claim a while the node is down. In the new boot the kubelet
// and the processes answer as in the case, and so does the API server, before it says that the claim is gone.
func TestRelease_RecordOfEarlierBoot_WaitsForAPIServerOnly(t *testing.T) {
	for name, c := range map[string]struct {
		given func(l *deletion)
		usage usage
		// kept changes what keeps the claim, and then lifts what it changed.
		kept, then func(l *deletion)
	}{
		"unused":             {},
		"kubelet unknown":    {usage: usage{err: errors.New("permission denied")}},
		"kubelet refers":     {usage: usage{named: map[string]bool{"a": true}}},
		"a process is there": {usage: usage{holder: "process 4711 (python)"}},
		"one GPU, no steps": {given: func(l *deletion) {
			l.Must(l.process.Unprepare(context.Background(), devicestatetest.ClaimID("a")))
			claim := l.Claim("a", "0")
			l.Prepare(l.process, "a")
			delete(l.Env.Claims, string(claim.UID))
		}},
		"devices unknown": {given: func(l *deletion) {
			l.Damage("a")
			l.Must(os.Remove(l.SpecFile("a")))
			l.Recover(l.process)
		}},
		"deallocated": {given: func(l *deletion) { l.Claim("a").Status.Allocation = nil }},
		"the clock is set back": {kept: func(l *deletion) {
			l.server.Down = errors.New("connection refused")
			l.Now = l.Now.Add(-24 * time.Hour)
		},
			then: func(l *deletion) { l.server.Down = nil; l.Now = l.Now.Add(-24 * time.Hour) }},
		"the API server fails": {kept: func(l *deletion) { l.server.Down = errors.New("connection refused") },
			then: func(l *deletion) { l.server.Down = nil }},
		"the API server is silent": {kept: func(l *deletion) { l.server.Down = fmt.Errorf("get the claim: %w", context.DeadlineExceeded) },
			then: func(l *deletion) { l.server.Down = nil }},
		"the server's cache lags": {kept: func(l *deletion) { l.SteppedClaim("a", "0"); l.server.Cached = devicestate.ErrNoClaim },
			then: func(l *deletion) { delete(l.Env.Claims, "a") }},
		"it exists for a while": {kept: func(l *deletion) { l.SteppedClaim("a", "0") }, then: func(l *deletion) { delete(l.Env.Claims, "a") }},
		"the boot ID is unreadable": {kept: func(l *deletion) { l.Must(os.WriteFile(l.BootFile, nil, 0o644)) },
			then: func(l *deletion) { l.Must(os.WriteFile(l.BootFile, fmt.Appendf(nil, "boot-%d\n", l.Boots), 0o644)) }},
		"Prepare failed in this boot": {given: func(l *deletion) { l.SteppedClaim("a", "0") },
			kept: func(l *deletion) {
				l.Configure = func(o *devicestate.Options) { o.Executors = nil }
				l.restart(l.Start())
				if _, err := l.process.Prepare(context.Background(), l.Env.Claims["a"]); err == nil {
					l.T.Fatal("prepared without an executor")
				}
				l.Configure = nil
				l.restart(l.Start())
			},
			then: func(l *deletion) { delete(l.Env.Claims, "a") }},
	} {
		for _, recovered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, recovered %t", name, recovered), func(t *testing.T) {
				l := vanishing(t)
				if c.given != nil {
					c.given(l)
				}
				l.process.Crash()
				l.Reboot(!recovered)
				l.restart(l.Start())
				if recovered {
					l.Recover(l.process)
				}
				*l.usage = c.usage
				if c.kept != nil {
					c.kept(l)
					for range 3 {
						for _, f := range l.after(2 * grace) {
							if f.Did != "" {
								t.Fatalf("released: %+v", f)
							}
						}
					}
					c.then(l)
				}
				l.released(l.after(0))
				l.Claim("c", "0")
				l.Prepare(l.process, "c")
			})
		}
	}
}

// TestRelease_PreparedInThisBoot_KeepsForGrace has a record that Prepare renewed after a reboot.
func TestRelease_PreparedInThisBoot_KeepsForGrace(t *testing.T) {
	for name, renew := range map[string]func(l *deletion, prepare func()){
		"before the first round": func(l *deletion, prepare func()) { prepare() },
		"between two rounds": func(l *deletion, prepare func()) {
			l.kept(l.after(0))
			prepare()
		},
		"during a round": func(l *deletion, prepare func()) {
			l.DeletedClaims = devicestate.NewDeletedClaims(l.process.Engine, answering{l.server, prepare}, l.usage, grace)
			delete(l.Env.Claims, "a")
			l.kept(l.after(0))
			l.DeletedClaims = devicestate.NewDeletedClaims(l.process.Engine, l.server, l.usage, grace)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := vanishing(t)
			claim := l.SteppedClaim("a", "0")
			l.process.Crash()
			l.Reboot(false)
			l.restart(l.Start())
			renew(l, func() {
				l.Env.Claims["a"] = claim
				l.Prepare(l.process, "a")
				delete(l.Env.Claims, "a")
			})
			delete(l.Env.Claims, "a")
			l.usage.named = map[string]bool{"a": true}
			l.kept(l.after(2 * grace))
			l.usage.named = nil
			l.kept(l.after(0))
			l.kept(l.after(grace - time.Second))
			l.released(l.after(time.Second))
		})
	}
}

// answering calls prepare before it answers from the cache.
type answering struct {
	*devicestatetest.APIServer
	prepare func()
}

func (a answering) GetCached(ctx context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	if c.UID == "a" {
		a.prepare()
	}
	return a.APIServer.GetCached(ctx, c)
}

func TestRelease_UnknownRecord_Releases(t *testing.T) {
	l := vanishing(t)
	l.Damage("a")
	l.Must(os.Remove(l.SpecFile("a")))
	l.Recover(l.process)
	l.Empty(l.StepFiles, "") // Without the record its effects cannot be found, so the test reverts them.
	if f := l.after(0); len(f) > 0 {
		t.Fatal(f)
	}
	l.released(l.after(grace))
}

func TestRelease_ReleaseFails_Retries(t *testing.T) {
	l := vanishing(t)
	l.Configure = func(o *devicestate.Options) { o.Executors = nil }
	l.restart(l.Start())
	l.after(0)
	if f := l.after(grace); len(f) != 1 || f[0].Err == nil {
		t.Fatalf("%+v", f)
	}
	l.Configure = nil
	l.restart(l.Start())
	l.after(0)
	l.released(l.after(grace))
}
