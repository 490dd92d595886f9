// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
)

func TestIdentify_UnknownClaims_FindsTheirDevices(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.SteppedClaim("a", "0")
	e.Prepare(p, "a")
	e.Claim("g", "2")
	e.Prepare(p, "g")
	for _, uid := range []string{"a", "g"} {
		e.Damage(uid)
		e.Must(os.Remove(e.SpecFile(uid)))
	}
	e.Recover(p)
	s := &devicestatetest.APIServer{Env: e, Down: errors.New("connection refused")}
	findings, err := p.Identify(context.Background(), s)
	e.Must(err)
	for _, f := range findings {
		if f.Err == nil || f.Did != "" {
			t.Errorf("found without the API server: %+v", f)
		}
	}
	s.Down = nil
	delete(e.Claims, "g")
	if err := e.Identify(p); err != nil {
		t.Fatal(err)
	}
	e.Claim("b", "1")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID g") // Gone is for DeletedClaims, not for Identify.
	e.Unprepare(p, "g")
	e.Recover(p)
	e.CheckClean(p, "a")
	e.Prepare(p, "b")
	e.Claim("c", "0")
	e.CheckRefused(p, "c", claimerror.Transient, claimerror.DeviceInUse, "UID a")
}

func TestIdentify_ClaimWithoutDevices_Releases(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Damage("a")
	e.Must(os.Remove(e.SpecFile("a")))
	e.Recover(p)
	e.Allocate(e.Claims["a"])
	e.Must(e.Identify(p))
	e.CheckClean(p)
}

func TestIdentify_DriverNotLoaded_ReturnsError(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Damage("a")
	e.Must(os.Remove(e.SpecFile("a")))
	e.Recover(p)
	e.Snapshot.GPUs, e.Snapshot.Driver.Version = nil, ""
	if err := e.Identify(p); claimerror.ReasonOf(err) != claimerror.DriverNotReady {
		t.Error(err)
	}
}
