// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/record"
)

// briefly is a caller of little patience, for calls that must still be waiting when it ends.
func briefly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// held is a machine on which one process is stopped inside Prepare of claim a, just before its commit.
func held(t *testing.T, gpus ...int) (w *world, other process, letGo func() error) {
	w = newWorld(t)
	g := hosttest.NewGate(record.LabelCommit)
	first, err := w.start(g.Do)
	w.must(err)
	t.Cleanup(first.host.Close)
	c := w.claim("a", gpus...)
	prepared := make(chan error, 1)
	go func() { _, err := first.Prepare(context.Background(), c); prepared <- err }()
	<-g.Reached
	return w, w.run(), func() error { close(g.Open); return <-prepared }
}

func TestGPUInWorkInAnotherProcessIsWaitedFor(t *testing.T) {
	w, other, letGo := held(t, 0, 1)
	w.claim("b", 1)
	_, err := other.Prepare(briefly(t), w.claims["b"])
	refused(t, err, claimerror.Transient, claimerror.Interrupted, "default/claim-b")
	w.claim("c", 2)
	w.prepare(other, "c") // Another GPU waits for nobody.
	w.must(letGo())
	w.refused(other, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	w.clean(other, "a", "c")
}

func TestClaimInWorkInAnotherProcessIsWaitedFor(t *testing.T) {
	w, other, letGo := held(t, -1) // A monitor: the claim's lock is the only one.
	refused(t, other.Unprepare(briefly(t), claimOf("a")), claimerror.Transient, claimerror.Interrupted)
	if findings, err := other.Recover(briefly(t)); err == nil && len(findings) == 0 {
		t.Error("Recover went past a claim in work")
	}
	w.must(letGo())
	w.clean(other, "a")
	w.must(other.Unprepare(context.Background(), claimOf("a")))
	w.clean(other)
}

// TestTwoProcessesNeverBothHoldAGPU lets claims of one and of two GPUs, in either order, fight for three GPUs in two
// processes, with Recover running all the while.
func TestTwoProcessesNeverBothHoldAGPU(t *testing.T) {
	w := newWorld(t)
	var mu sync.Mutex
	owner := map[int]string{}
	won := 0
	var workers, recoveries sync.WaitGroup
	done := make(chan struct{})
	for n := range 2 {
		// The host's clock is the world's, which is not for sharing: each process has a world on the same directory.
		mine := w.again()
		p := mine.run()
		recoveries.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if findings, err := p.Recover(context.Background()); err != nil || len(findings) > 0 {
					t.Errorf("Recover meddled: %+v, %v", findings, err)
				}
			}
		})
		for i, gpus := range [][]int{{0}, {0, 1}, {2, 1}, {1, 2}} {
			uid := fmt.Sprintf("p%d-%d", n, i)
			c := mine.steppedClaim(uid, gpus...)
			workers.Go(func() {
				for range 60 {
					_, err := p.Prepare(context.Background(), c)
					if err != nil && claimerror.ReasonOf(err) != claimerror.DeviceInUse {
						t.Error(err)
					}
					if err == nil {
						mu.Lock()
						won++
						for _, g := range gpus {
							if owner[g] != "" {
								t.Errorf("GPU %d is held by %s and %s", g, owner[g], uid)
							}
							owner[g] = uid
						}
						mu.Unlock()
						mu.Lock()
						for _, g := range gpus {
							delete(owner, g)
						}
						mu.Unlock()
					}
					if err := p.Unprepare(context.Background(), claimOf(uid)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	workers.Wait()
	close(done)
	recoveries.Wait()
	if won == 0 {
		t.Error("nobody ever got a GPU")
	}
	w.clean(w.run())
	t.Logf("%d of 480 attempts got their GPUs", won)
}
