// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

// buggy is an executor with a bug in one of its methods, on one GPU.
type buggy struct {
	devicestate.Executor
	method, address string
}

func (b buggy) meet(method string, w plan.Work) {
	if b.method == method && b.address == w.Step.PCIAddress {
		panic("bug")
	}
}

func (b buggy) Admit(ctx context.Context, w plan.Work) error {
	b.meet("admit", w)
	return b.Executor.Admit(ctx, w)
}

func (b buggy) Apply(ctx context.Context, w plan.Work) error {
	err := b.Executor.Apply(ctx, w)
	b.meet("apply", w)
	return err
}

func (b buggy) Check(ctx context.Context, w plan.Work) error {
	b.meet("check", w)
	return b.Executor.Check(ctx, w)
}

func (b buggy) Revert(ctx context.Context, w plan.Work) error {
	b.meet("revert", w)
	return b.Executor.Revert(ctx, w)
}

// TestStep_Panics_FailsOnlyItsClaim runs the steps of two GPUs one after the other, and concurrently as in production.
func TestStep_Panics_FailsOnlyItsClaim(t *testing.T) {
	for name, hook := range map[string]host.FaultHook{"in order": hosttest.Trace().Do, "at once": nil} {
		for _, method := range []string{"admit", "apply", "check", "revert"} {
			t.Run(name+", "+method, func(t *testing.T) {
				e := devicestatetest.New(t)
				p := e.Start()
				standby(e, p)
				e.SteppedClaim("a", "0", "1")
				prepared := method == "check" || method == "revert"
				if prepared {
					e.Prepare(p, "a")
				}
				p.Crash()
				e.Configure = func(o *devicestate.Options) {
					o.Executors["file"] = buggy{o.Executors["file"], method, e.Address(1)}
				}
				p, err := e.StartWith(hook)
				e.Must(err)
				switch method {
				case "check":
					findings, err := p.Recover(context.Background())
					e.Must(err)
					if len(findings) != 1 || claimerror.ReasonOf(findings[0].Err) != claimerror.InternalFault {
						t.Errorf("findings %+v", findings)
					}
				case "revert":
					err := p.Unprepare(context.Background(), devicestatetest.ClaimID("a"))
					devicestatetest.CheckError(t, err, claimerror.Transient, claimerror.InternalFault, "default/claim-a")
				default:
					e.CheckRefused(p, "a", claimerror.Transient, claimerror.InternalFault, "default/claim-a")
					e.CheckClean(p, "z")
				}
				e.Claim("b", "2")
				e.Prepare(p, "b")
				e.Unprepare(p, "z")
				p.Crash()
				e.Configure = nil
				p = e.Start() // A version without the bug.
				e.Recover(p)
				e.Unprepare(p, "a")
				e.CheckClean(p, "b")
			})
		}
	}
}
