// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package reset_test

import (
	"context"
	"runtime"
	"testing"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/executor/reset"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
)

// TestReconcile_ClaimOnGPU_ResetsAfterItLeft has a reset that hangs: only its GPU is not available meanwhile.
func TestReconcile_ClaimOnGPU_ResetsAfterItLeft(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("first", "0")
	e.Prepare(p, "first")
	m := newMachine(t)
	e.Snapshot.GPUs[0].Faults = m.gpu.Faults
	m.gpu = e.Snapshot.GPUs[0]
	e.Must(m.o.Faults.Put(record.GPU{BootID: "b", PCIAddress: m.gpu.PCIAddress, UUID: m.gpu.UUID, Faults: m.gpu.Faults}))
	began, end := make(chan struct{}), make(chan struct{})
	m.reset = func(context.Context) error {
		began <- struct{}{}
		<-end
		return nil
	}
	settings := executor.NewSettings(p.Host, p, devicestatetest.Scans(func() gpu.Snapshot { return e.Snapshot }), reset.New(m.o).Setting())
	reconcile := func() {
		t.Helper()
		if errs := settings.Reconcile(t.Context()); len(errs) > 0 {
			t.Error(errs)
		}
	}
	reconcile()
	// An attempt holds the lock of the GPU until it has seen the claim.
	locked := make(chan error, 1)
	go func() { locked <- p.WithGPULock(t.Context(), m.gpu.PCIAddress, func([]plan.Plan) error { return nil }) }()
	select {
	case <-began:
		close(end)
		t.Fatal("a GPU of a claim is reset")
	case err := <-locked:
		e.Must(err)
	}
	e.Unprepare(p, "first")
	for resets := false; !resets; { // The first attempt can still be in progress.
		reconcile()
		runtime.Gosched()
		select {
		case <-began:
			resets = true
		default:
		}
	}
	e.Claim("here", "0")
	e.CheckRefused(p, "here", claimerror.Transient, claimerror.DeviceNotReady, "gpu-0000-10-00-0", "elsewhere")
	e.Claim("there", "1")
	e.Prepare(p, "there")
	e.Unprepare(p, "there")
	close(end)
	e.Snapshot.GPUs[0].Faults = nil
	e.Prepare(p, "here") // After the reset has ended.
	if len(m.reports) > 0 {
		t.Error(m.reports)
	}
}
