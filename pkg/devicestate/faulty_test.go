// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"testing"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

func TestPrepare_FaultyGPU_RefusedUnlessUsable(t *testing.T) {
	for _, state := range health.States {
		t.Run(state.Name, func(t *testing.T) {
			e := devicestatetest.New(t)
			p := e.Start()
			e.Claim("before", "1")
			e.Prepare(p, "before")
			e.Snapshot.GPUs[0].Faults = []gpu.Fault{{State: state.Name, Cause: state.Cause}}
			e.Snapshot.GPUs[1].Faults = e.Snapshot.GPUs[0].Faults
			e.Prepare(p, "before") // A prepared claim stays prepared.
			e.Claim("new", "0")
			if state.Usable {
				e.Prepare(p, "new")
			} else {
				e.CheckRefused(p, "new", claimerror.Transient, claimerror.DeviceNotReady, "gpu-0000-10-00-0", state.Cause, "elsewhere")
			}
			e.Claim("watches", "monitor 0")
			e.Prepare(p, "watches")
			e.Snapshot.GPUs[0].Faults = nil
			e.Prepare(p, "new")
			e.CheckClean(p, "before", "new", "watches")
		})
	}
}

func TestPrepare_GPUHangs_RefusedUnlessPrepared(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("before", "1")
	e.Prepare(p, "before")
	for i := range e.Snapshot.GPUs[:2] {
		e.Snapshot.GPUs[i].Silent = true
	}
	e.Prepare(p, "before")
	e.Claim("new", "0", "2")
	e.CheckRefused(p, "new", claimerror.Transient, claimerror.DeviceNotReady, "gpu-0000-10-00-0", gpu.SilentText, "elsewhere")
	e.Claim("other", "2")
	e.Prepare(p, "other")
	e.Unprepare(p, "other")
	e.Snapshot.GPUs[0].Silent = false
	e.Prepare(p, "new")
	e.CheckClean(p, "before", "new")
}
