// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"syscall"
	"testing"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/devicestate"
)

func TestUnprepare_DiskFull_Succeeds(t *testing.T) {
	e := devicestatetest.New(t)
	f := hosttest.FailAll(func(o host.Operation) bool {
		return o.Call == host.CallWrite || o.Call == host.CallNote || o.Call == host.CallMkdir
	}, syscall.ENOSPC)
	p, err := e.StartWith(f.Do)
	e.Must(err)
	defer p.Crash()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	f.Arm()
	e.Unprepare(p, "a")
	f.Disarm()
	e.CheckClean(p)
}

func TestUnprepare_UnknownExecutor_ReturnsErrorAndKeepsDevices(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.Prepare(p, "a")
	p.Crash()
	e.Configure = func(o *devicestate.Options) { o.Executors = nil }
	p = e.Start()
	err := p.Unprepare(context.Background(), devicestatetest.ClaimID("a"))
	devicestatetest.CheckError(t, err, claimerror.Transient, claimerror.HostFailure, `"file"`, "Install the version")
	findings, err := p.Recover(context.Background())
	e.Must(err)
	if len(findings) != 1 || findings[0].Err == nil {
		t.Fatalf("findings %+v", findings)
	}
	e.Claim("b", "0")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a, intent")
	p.Crash()
	e.Configure = nil
	p = e.Start()
	e.Recover(p)
	e.CheckClean(p)
}
