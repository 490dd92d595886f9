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
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/record"
)

// briefly returns a context for calls that must still wait for a lock when it ends.
func briefly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// held returns a machine on which a process is stopped inside Prepare of claim a, just before its commit, and a second
// process. resume lets the first one continue, and returns the error of its Prepare.
func held(t *testing.T, gpus ...string) (e *env, other *process, resume func() error) {
	e = devicestatetest.New(t)
	g := hosttest.NewGate(record.LabelCommit)
	first, err := e.StartWith(g.Do)
	e.Must(err)
	t.Cleanup(first.Crash)
	c := e.Claim("a", gpus...)
	prepared := make(chan error, 1)
	go func() { _, err := first.Prepare(context.Background(), c); prepared <- err }()
	<-g.Reached
	return e, e.Start(), func() error { close(g.Open); return <-prepared }
}

func TestPrepare_GPULockedByAnotherProcess_Waits(t *testing.T) {
	e, other, resume := held(t, "0", "1")
	e.Claim("b", "1")
	_, err := other.Prepare(briefly(t), e.Claims["b"])
	devicestatetest.CheckError(t, err, claimerror.Transient, claimerror.Interrupted, "default/claim-b")
	e.Claim("c", "2")
	e.Prepare(other, "c") // A claim of another GPU does not wait.
	e.Must(resume())
	e.CheckRefused(other, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
	e.CheckClean(other, "a", "c")
}

func TestUnprepare_ClaimLockedByAnotherProcess_Waits(t *testing.T) {
	e, other, resume := held(t, "monitor 0") // A monitor device: Prepare locks the claim and no GPU.
	devicestatetest.CheckError(t, other.Unprepare(briefly(t), devicestatetest.ClaimID("a")), claimerror.Transient, claimerror.Interrupted)
	if findings, err := other.Recover(briefly(t)); err == nil && len(findings) == 0 {
		t.Error("Recover did not wait for the claim's lock")
	}
	e.Must(resume())
	e.CheckClean(other, "a")
	e.Unprepare(other, "a")
	e.CheckClean(other)
}

// TestPrepare_TwoProcessesContend_OneOwnerPerGPU prepares and unprepares claims of one and of two of three GPUs, in either
// order, at the same time in two processes, which also run Recover all the time.
func TestPrepare_TwoProcessesContend_OneOwnerPerGPU(t *testing.T) {
	e := devicestatetest.New(t)
	var mu sync.Mutex
	owner := map[string]string{}
	won := 0
	var workers, recoveries sync.WaitGroup
	done := make(chan struct{})
	for n := range 2 {
		// An Env has one clock, which is not safe for concurrent use. So each process has its own Env on the directory.
		mine := devicestatetest.Attach(t, e.Dir)
		p := mine.Start()
		recoveries.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if findings, err := p.Recover(context.Background()); err != nil || len(findings) > 0 {
					t.Errorf("Recover found work: %+v, %v", findings, err)
				}
			}
		})
		for i, gpus := range [][]string{{"0"}, {"0", "1"}, {"2", "1"}, {"1", "2"}} {
			uid := fmt.Sprintf("p%d-%d", n, i)
			c := mine.SteppedClaim(uid, gpus...)
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
								t.Errorf("GPU %s is held by %s and %s", g, owner[g], uid)
							}
							owner[g] = uid
						}
						mu.Unlock()
						// Here a worker that wrongly gets one of the GPUs too finds its owner.
						mu.Lock()
						for _, g := range gpus {
							delete(owner, g)
						}
						mu.Unlock()
					}
					if err := p.Unprepare(context.Background(), devicestatetest.ClaimID(uid)); err != nil {
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
		t.Error("no claim got a GPU")
	}
	e.CheckClean(e.Start())
	t.Logf("%d of 480 attempts got their GPUs", won)
}
