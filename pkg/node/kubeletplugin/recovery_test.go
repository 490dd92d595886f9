// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/notify/notifytest"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu/inventory"
)

func TestRecovery_Findings_AreNotifiedOnceAndCounted(t *testing.T) {
	e := env.New(t)
	r := newRecovery(nil, nil, newEvents(e), e.Metrics, newChanges(), nil, Options{})
	named, nameless := plan.Claim{Namespace: "ns", Name: "one", UID: "u1"}, plan.Claim{UID: "u2"}
	stuck := []devicestate.Finding{
		{Claim: named, Found: "intent", Err: errors.New("disk full")},
		{Claim: nameless, Found: "unknown", Err: errors.New("API away")},
		{Claim: plan.Claim{UID: "u3"}, Found: "committed"}, // nothing to notify
	}
	for range 3 {
		if r.notify(t.Context(), stuck) {
			t.Error("what failed counts as done")
		}
	}
	e.Event("ResourceClaim", "one", "HostFailure")
	e.Event("Node", "n1", "HostFailure", "UID u2", "API away")
	e.Metric(`gpu_dra_recoveries_total{found="intent",result="error"} 3`)
	if event := e.Event("ResourceClaim", "one", "HostFailure"); event.Count > 1 {
		t.Errorf("notified %d times", event.Count)
	}
	if !r.notify(t.Context(), []devicestate.Finding{{Claim: named, Found: "intent", Did: "undone"}}) || !fired(r.changes.unneeded) {
		t.Error("not released")
	}
	e.Metric(`gpu_dra_recoveries_total{found="intent",result="done"} 1`)
	if !r.isNew("u1", "disk full") {
		t.Error("an error that comes back is not notified again")
	}
	for i := range 2 * maxNotified {
		r.isNew(fmt.Sprint("gone-", i), "disk full")
	}
	if len(r.notified) > maxNotified {
		t.Errorf("%d errors are remembered, want at most %d", len(r.notified), maxNotified)
	}
	already := &claimerror.Error{Reason: claimerror.DeviceLost, Cause: errors.New("x")}
	if got := typed(devicestate.Finding{Err: already}); !errors.Is(got, already) || claimerror.ReasonOf(got) != claimerror.DeviceLost {
		t.Errorf("what is typed already became %v", got)
	}
}

// TestRecovery_ClaimsNotListed_NextPassWaits: device numbers that may have changed must not repeat a pass that cannot begin.
func TestRecovery_ClaimsNotListed_NextPassWaits(t *testing.T) {
	e, dir, looks := env.New(t), t.TempDir(), 0
	h := host.New(host.Options{BootIDFile: filepath.Join(dir, "absent")})
	t.Cleanup(h.Close)
	engine, err := devicestate.Open(devicestate.Options{
		Host: h, Dir: dir, Specs: store.New(h, dir, filepath.Join(dir, "mounted"), "d"), Driver: "d", Pool: "p", Reports: notifytest.Reporter(nil),
		Scans: inventory.NewLatest(), Kernel: func() string {
			looks++
			return "another driver"
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := newRecovery(engine, nil, newEvents(e), e.Metrics, newChanges(), nil, Options{})
	synctest.Test(t, func(t *testing.T) {
		r.rebound = notify.NewTrigger()
		ctx, cancel := context.WithTimeout(t.Context(), recoverPause*5/2)
		defer cancel()
		go r.run(ctx)
		for range 20 {
			r.rebound.Fire()
			time.Sleep(recoverPause / 10)
		}
		<-ctx.Done()
	})
	if looks != 0 {
		t.Errorf("%d looks at device numbers after passes that did not begin", looks)
	}
}

// TestRecovery_NumbersChange_ComparedAtEventsAndAtIntervals has a kernel that gives other numbers.
func TestRecovery_NumbersChange_ComparedAtEventsAndAtIntervals(t *testing.T) {
	e, dir, kernel := env.New(t), t.TempDir(), new(atomic.Int32)
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	engine, err := devicestate.Open(devicestate.Options{
		Host: h, Dir: dir, Specs: store.New(h, dir, filepath.Join(dir, "mounted"), "d"), Driver: "d", Pool: "p", Reports: notifytest.Reporter(nil),
		Scans: inventory.NewLatest(), Kernel: func() string { return fmt.Sprint(kernel.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r := newRecovery(engine, nil, newEvents(e), e.Metrics, newChanges(), nil, Options{})
	synctest.Test(t, func(t *testing.T) {
		r.rebound, r.done = notify.NewTrigger(), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			r.run(ctx)
			close(ended)
		}()
		for range 3 {
			for event, limit := range map[bool]time.Duration{true: 0, false: recoverPause} {
				synctest.Wait()
				kernel.Add(1)
				if event {
					r.rebound.Fire()
				}
				time.Sleep(limit)
				synctest.Wait()
				if engine.Renumbered() {
					t.Errorf("with an event %v, specs are not compared within %s", event, limit)
				}
			}
		}
		cancel()
		<-ended
	})
}

func TestRecovery_FirstPassFails_PrepareReceivesTheReason(t *testing.T) {
	dir := t.TempDir()
	h := host.New(host.Options{BootIDFile: filepath.Join(dir, "absent")})
	t.Cleanup(h.Close)
	engine, err := devicestate.Open(devicestate.Options{Host: h, Dir: dir, Specs: store.New(h, dir, filepath.Join(dir, "mounted"), "d"), Driver: "d", Pool: "p", Reports: notifytest.Reporter(nil)})
	if err != nil {
		t.Fatal(err)
	}
	e := env.New(t)
	r := newRecovery(engine, nil, newEvents(e), e.Metrics, newChanges(), nil, Options{})
	if err := r.wait(t.Context(), time.Millisecond); err == nil {
		t.Error("served before Recover")
	}
	if clean, began := r.recover(t.Context()); clean || began {
		t.Error("clean, or begun, without a boot ID")
	}
	if err := r.wait(t.Context(), time.Millisecond); err == nil || !strings.Contains(err.Error(), "boot ID") {
		t.Errorf("the reason is missing: %v", err)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errStopping)
	if err := r.wait(gone, time.Minute); !errors.Is(err, errStopping) {
		t.Errorf("the caller is gone: %v", err)
	}
	close(r.done)
	if err := r.wait(gone, time.Minute); err != nil {
		t.Error(err)
	}
	s := &service{recovery: r, inventory: inventory.New(inventory.Options{})}
	if err := s.ready(gone); claimerror.KindOf(err) != claimerror.Transient || !errors.Is(err, errStopping) || !strings.Contains(err.Error(), "not ready") {
		t.Errorf("before the first pass: %v", err)
	}
}
