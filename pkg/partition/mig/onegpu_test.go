// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

// hangingClaims are claims "a" of GPU 0, which hangs, and GPU 1.
var hangingClaims = map[string]func(e *env){
	"partitions": func(e *env) { e.Claim("a", "0 1g.10gb 4", "1 1g.10gb 4") },
	"slices":     func(e *env) { e.SharedClaim("a", 3, byLong, "0", "1") },
}

// hangingOperation is work on claim "a" during which a call on GPU 0 hangs.
type hangingOperation struct {
	name string
	// given is called by an earlier process, without a hang.
	given func(e *env, p *process)
	do    func(context.Context, *process, *resourceapi.ResourceClaim) error
}

var hangingOperations = []hangingOperation{
	{"prepare", func(*env, *process) {}, prepare},
	{"prepare again", func(e *env, p *process) { e.Prepare(p, "a") }, prepare},
	{"unprepare", func(e *env, p *process) { e.Prepare(p, "a") }, func(ctx context.Context, p *process, _ *resourceapi.ResourceClaim) error {
		return p.Unprepare(ctx, devicestatetest.ClaimID("a"))
	}},
	{"recover a commit", func(e *env, p *process) {
		e.Prepare(p, "a")
		e.Must(os.Remove(e.SpecFile("a")))
	}, recovers},
	{"recover a release", func(e *env, p *process) {
		e.Prepare(p, "a")
		e.Must(os.Rename(e.RecordFile("a"), strings.TrimSuffix(e.RecordFile("a"), "json")+"undo"))
	}, recovers},
	{"verify", func(e *env, p *process) { e.Prepare(p, "a") }, func(ctx context.Context, p *process, _ *resourceapi.ResourceClaim) error {
		return findings(p.Verify(ctx, []plan.Claim{devicestatetest.ClaimID("a")}), nil)
	}},
}

func prepare(ctx context.Context, p *process, c *resourceapi.ResourceClaim) error {
	_, err := p.Prepare(ctx, c)
	return err
}

func recovers(ctx context.Context, p *process, _ *resourceapi.ResourceClaim) error {
	return findings(p.Recover(ctx))
}

func findings(all []devicestate.Finding, err error) error {
	for _, f := range all {
		err = errors.Join(err, f.Err)
	}
	return err
}

// TestOneGPUOfEightHangs_OthersServed lets each call of each operation on one GPU hang. The operation ends with an error
// that names the GPU. Meanwhile all other GPUs are served, those of the same claim too. Afterwards everything goes on.
func TestOneGPUOfEightHangs_OthersServed(t *testing.T) {
	for kind, claim := range hangingClaims {
		for _, o := range hangingOperations {
			for _, call := range callsOf(t, claim, o) {
				t.Run(fmt.Sprintf("%s/%s/%s", kind, o.name, call), func(t *testing.T) {
					t.Parallel()
					e, p := hangingMachine(t, claim, o)
					hung := e.Sim.NVML.Hang(func(_ int, c nvmltest.Call) bool { return c == call })
					ctx, cancel := context.WithCancel(t.Context())
					ended, c := make(chan error, 1), e.Claims["a"]
					go func() { ended <- o.do(ctx, p, c) }()
					<-hung
					cancel() // The kubelet stops waiting.
					devicestatetest.InTime(e, "the operation", func() error {
						err := <-ended
						ended <- err
						if err == nil || !strings.Contains(err.Error(), "GPU "+e.Address(0)) && !strings.Contains(err.Error(), "continues") {
							return fmt.Errorf("it returned %w, want an error that names the GPU", err)
						}
						return nil
					})
					serveSeven(t, e, p)
					brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
					defer cancel()
					if err := p.WithGPULock(brief, e.Address(0), func([]plan.Plan) error { return nil }); err == nil {
						t.Error("the GPU's lock is free while a call of it hangs")
					}
					// The kubelet repeats its call.
					again, cancel := context.WithCancel(t.Context())
					repeated := make(chan error, 1)
					go func() { repeated <- prepare(again, p, c) }()
					serveSeven(t, e, p)
					cancel()
					if err := <-repeated; err == nil {
						t.Error("prepared on a GPU that hangs")
					}
					e.Sim.NVML.Clear()
					goesOn(t, e, p)
				})
			}
		}
	}
}

// TestOneGPUOfEightLocked_OthersServed has the lock of a GPU held by another process, during each operation.
func TestOneGPUOfEightLocked_OthersServed(t *testing.T) {
	for kind, claim := range hangingClaims {
		for _, o := range hangingOperations {
			t.Run(kind+"/"+o.name, func(t *testing.T) {
				t.Parallel()
				e, p := hangingMachine(t, claim, o)
				for _, gpu := range []int{0, 1} { // The claim waits for its first GPU, or holds it and waits for the second.
					other, err := devicestatetest.Attach(t, e.Dir).StartWith(nil)
					e.Must(err)
					t.Cleanup(other.Crash)
					ctx, cancel := context.WithCancel(t.Context())
					ended, c := make(chan error, 1), e.Claims["a"]
					e.Must(other.WithGPULock(t.Context(), e.Address(gpu), func([]plan.Plan) error {
						go func() { ended <- o.do(ctx, p, c) }()
						serve(e, p, 1-gpu, 2, 7)
						cancel()
						devicestatetest.InTime(e, "the operation", func() error {
							err := <-ended
							// An operation that begins late is stopped while it waits for its first GPU.
							names := func(n int) bool { return strings.Contains(err.Error(), "GPU "+e.Address(n)) }
							if err == nil || !names(gpu) && !names(0) && !strings.Contains(err.Error(), "continues") {
								return fmt.Errorf("it returned %w, want an error that names the GPU", err)
							}
							return nil
						})
						return nil
					}))
				}
				goesOn(t, e, p)
			})
		}
	}
}

// hangingMachine returns a machine of eight GPUs before an operation, with a process that works on GPUs concurrently.
func hangingMachine(t *testing.T, claim func(*env), o hangingOperation) (*env, *process) {
	e := devicestatetest.NewSimulatedGPUs(t, "hgx-h100", 8)
	first := e.Start()
	claim(e)
	o.given(e, first)
	first.Crash()
	e.Configure = func(o *devicestate.Options) { o.WorkLimit, o.Grace = time.Hour, time.Millisecond } // The test ends the wait.
	p, err := e.StartWith(nil)
	e.Must(err)
	t.Cleanup(p.Crash)
	t.Cleanup(func() { e.Sim.NVML.Clear() })
	return e, p
}

// callsOf returns the calls of an operation on GPU 0, once each.
func callsOf(t *testing.T, claim func(*env), o hangingOperation) (calls []nvmltest.Call) {
	e, p := hangingMachine(t, claim, o)
	e.Sim.NVML.Answer(0, nvmltest.Nth(-1))
	e.Must(o.do(t.Context(), p, e.Claims["a"]))
	uuid, met := e.Sim.State().GPUs[0].UUID, map[nvmltest.Call]bool{}
	for _, c := range e.Sim.NVML.Clear() {
		if c.GPU == uuid && !met[c] {
			met[c] = true
			calls = append(calls, c)
		}
	}
	return calls
}

func serveSeven(t *testing.T, e *env, p *process) {
	t.Helper()
	serve(e, p, 1, 2, 3, 4, 5, 6, 7)
}

// serve prepares and unprepares a claim of each GPU.
func serve(e *env, p *process, gpus ...int) {
	e.T.Helper()
	for _, n := range gpus {
		const uid = "other"
		if e.Claims["a"].Status.Allocation.Devices.Results[0].ShareID != nil {
			e.SharedClaim(uid, 3, byLong, fmt.Sprint(n))
		} else {
			e.Claim(uid, fmt.Sprintf("%d 1g.10gb 5", n))
		}
		devicestatetest.InTime(e, fmt.Sprintf("a claim of GPU %d", n), func() error {
			_, err := p.Prepare(context.Background(), e.Claims[uid])
			if err == nil {
				err = p.Unprepare(context.Background(), devicestatetest.ClaimID(uid))
			}
			return err
		})
		delete(e.Claims, uid)
	}
}

// goesOn prepares and unprepares claim "a" after a hang.
func goesOn(t *testing.T, e *env, p *process) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, err := p.Prepare(t.Context(), e.Claims["a"])
		if err == nil {
			err = p.RecoverAll() // It returns the error of the operation that was stopped, too.
		}
		if err == nil {
			break
		}
		if claimerror.KindOf(err) != claimerror.Transient || time.Now().After(deadline) {
			t.Fatalf("after the hang: %v", err)
		}
	}
	e.CheckClean(p, "a")
	e.Unprepare(p, "a")
	e.CheckClean(p)
}
