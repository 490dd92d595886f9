// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

// hangs returns a machine with the claims a and z on GPU 0, whose MIG mode never answers, and b on GPU 1. All have lost
// their specs, and a new process, which works on GPUs concurrently, has started.
func hangs(t *testing.T) (*env, *process) {
	e := h100(t)
	first := e.Start()
	given(map[string][]string{"a": {"0 1g.10gb 4"}, "b": {"1 1g.10gb 4"}, "z": {"0 1g.10gb 5"}}, "a", "b", "z")(e, first)
	for _, uid := range []string{"a", "b", "z"} {
		e.Must(os.Remove(e.SpecFile(uid)))
	}
	first.Crash()
	e.Configure = func(o *devicestate.Options) { o.WorkLimit = 200 * time.Millisecond }
	p, err := e.StartWith(nil)
	e.Must(err)
	t.Cleanup(p.Crash)
	e.Sim.NVML.Hang(nvmltest.Of("nvmlDeviceGetMigMode", e.Sim.State().GPUs[0].UUID))
	t.Cleanup(func() { e.Sim.NVML.Clear() })
	return e, p
}

func TestRecover_OneGPUHangs_RecoversOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p := hangs(t)
		for range 3 {
			findings, err := p.Recover(t.Context())
			e.Must(err)
			unfinished := 0
			for _, f := range findings {
				switch {
				case f.Claim.UID == "b" && f.Err == nil && f.Did == "spec rewritten":
				case f.Claim.Name != "claim-b" && f.Err != nil && strings.Contains(f.Err.Error(), "default/claim-"+f.Claim.UID):
					unfinished++
				default:
					t.Errorf("%+v", f)
				}
			}
			if unfinished != 2 {
				t.Errorf("findings %+v, want a and z unfinished", findings)
			}
		}
		e.Claim("c", "2")
		e.Prepare(p, "c")
		e.Unprepare(p, "c")
		e.Unprepare(p, "b")
		e.Sim.NVML.Clear()
		for deadline := time.Now().Add(10 * time.Second); p.RecoverAll() != nil; {
			if time.Now().After(deadline) {
				t.Fatal("no recovery after the hang")
			}
		}
		e.CheckClean(p, "a", "z")
	})
}

func TestRelease_OneGPUHangs_ReleasesOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, p := hangs(t)
		d := devicestate.NewDeletedClaims(p.Engine, &devicestatetest.APIServer{Env: e}, unused{}, 0)
		clear(e.Claims)
		for range 2 {
			if _, err := d.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		plans, _, err := p.Held()
		e.Must(err)
		for _, held := range plans {
			if held.Claim.UID == "b" {
				t.Error("the claim of another GPU waits for the GPU that hangs")
			}
		}
		e.Sim.NVML.Clear()
		for deadline := time.Now().Add(10 * time.Second); len(plans) > 0 && time.Now().Before(deadline); {
			_, err := d.Release(t.Context())
			e.Must(err)
			plans, _, err = p.Held()
			e.Must(err)
		}
		e.CheckClean(p)
	})
}

// unused reports that nothing uses a claim.
type unused struct{}

func (unused) ReferencedByKubelet(context.Context) (func(plan.Claim) bool, error) {
	return func(plan.Claim) bool { return false }, nil
}

func (unused) OpenedBy(context.Context, []plan.Device) (string, error) { return "", nil }
