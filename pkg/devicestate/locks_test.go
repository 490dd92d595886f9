// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/plan"
)

// TestUndo_GPULocks_HeldToTheEnd checks that Unprepare and Recover wait for the GPU's lock, and keep it while they undo.
func TestUndo_GPULocks_HeldToTheEnd(t *testing.T) {
	for name, undo := range map[string]func(context.Context, *process) error{
		"unprepare": func(ctx context.Context, p *process) error { return p.Unprepare(ctx, devicestatetest.ClaimID("a")) },
		"recover": func(ctx context.Context, p *process) error {
			findings, err := p.Recover(ctx)
			for _, f := range findings {
				err = errors.Join(err, f.Err)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.New(t)
			first := e.Start()
			e.SteppedClaim("a", "0")
			e.Prepare(first, "a")
			e.Must(os.Rename(e.RecordFile("a"), strings.TrimSuffix(e.RecordFile("a"), "json")+"undo"))
			first.Crash()
			reached, open := make(chan struct{}), make(chan struct{})
			var armed atomic.Bool
			p, err := e.StartWith(func(o host.Operation, do func() error) error {
				if o.Label == "test.revert" && armed.CompareAndSwap(true, false) {
					close(reached)
					<-open
				}
				return do()
			})
			e.Must(err)
			defer p.Crash()
			other := e.Start()
			e.Must(other.WithGPULock(t.Context(), e.Address(0), func([]plan.Plan) error {
				if err := undo(briefly(t), p); err == nil {
					t.Error("it does not wait for the lock of its GPU")
				}
				return nil
			}))
			armed.Store(true)
			undone := make(chan error, 1)
			go func() { undone <- undo(t.Context(), p) }()
			select {
			case <-reached:
				if other.WithGPULock(briefly(t), e.Address(0), func([]plan.Plan) error { return nil }) == nil {
					t.Error("it lets the lock of its GPU go before its end")
				}
				close(open)
				e.Must(<-undone)
			case err := <-undone:
				t.Errorf("it ended without undoing steps: %v", err)
			}
			e.CheckClean(other)
		})
	}
}

func TestWithGPULock_RecordsOfOtherGPUs_AreNotRead(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	for uid, device := range map[string]string{"a": "0", "z": "1"} {
		e.Claim(uid, device)
		e.Prepare(p, uid)
	}
	e.Damage("z")
	e.Must(os.Remove(e.SpecFile("z")))
	for device, want := range []string{"[a]", "not called"} {
		got := "not called"
		e.Must(p.WithGPULock(t.Context(), e.Address(device), func(plans []plan.Plan) error {
			var uids []string
			for _, held := range plans {
				uids = append(uids, held.Claim.UID)
			}
			got = fmt.Sprint(uids)
			return nil
		}))
		if got != want {
			t.Errorf("GPU %d: %s, want %s", device, got, want)
		}
	}
}
