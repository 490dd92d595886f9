// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

type (
	env     = devicestatetest.Env
	process = devicestatetest.Process
)

// machine makes a machine of a profile, with --allow-gpu-reset or without.
func machine(profile string, reset bool) func(testing.TB) *env {
	return func(t testing.TB) *env {
		e := devicestatetest.NewSimulated(t, profile)
		e.Sim.MIG.AllowReset = reset
		return e
	}
}

func prepares(uid string) func(*env, *process) error {
	return func(e *env, p *process) error {
		_, err := p.Prepare(context.Background(), e.Claims[uid])
		return err
	}
}

func unprepares(uid string) func(*env, *process) error {
	return func(_ *env, p *process) error { return p.Unprepare(context.Background(), devicestatetest.ClaimID(uid)) }
}

var h100 = machine("hgx-h100", false)

// given makes claims, of which those named are prepared.
func given(claims map[string][]string, prepared ...string) func(*env, *process) {
	return func(e *env, p *process) {
		for _, uid := range slices.Sorted(maps.Keys(claims)) {
			e.Claim(uid, claims[uid]...)
		}
		for _, uid := range prepared {
			e.Prepare(p, uid)
		}
	}
}

var one = map[string][]string{"a": {"0 1g.10gb 4"}}

var beside = map[string][]string{"a": {"0 3g.40gb 0"}, "z": {"0 1g.10gb 6"}}

var scenarios = []devicestatetest.Scenario{
	{New: h100, Name: "the first partition of a GPU", Given: given(one), When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "a partition beside another", Given: given(beside, "z"), When: prepares("a"), Then: []string{"a", "z"}},
	{New: h100, Name: "two partitions of one GPU", Given: given(map[string][]string{"a": {"0 1g.10gb 4", "0 2g.20gb 0"}}), When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "partitions of two GPUs and a whole", Given: given(map[string][]string{"a": {"0 1g.10gb 4", "1 7g.80gb 0", "2"}}), When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "again", Given: given(one, "a"), When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "again after it vanished", Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
	}, When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "again after its compute instance vanished", Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.DestroyCompute(&s.GPUs[0], s.GPUs[0].Instances[0].ID, 0) })
	}, When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "again after the driver was loaded anew", Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.DriverLoaded = false })
		e.Sim.Change(func(s *engine.State) { s.DriverLoaded = true })
	}, When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "after a reboot", Given: func(e *env, p *process) {
		given(map[string][]string{"a": {"0 1g.10gb 4", "1 3g.40gb 4"}}, "a")(e, p)
		e.Reboot(false)
	},
		When: prepares("a"), Then: []string{"a"}},
	{New: machine("dgx-a100-80", true), Name: "after a reboot that keeps the mode", Given: func(e *env, p *process) { given(one, "a")(e, p); e.Reboot(false) },
		When: prepares("a"), Then: []string{"a"}},
	{New: machine("dgx-a100-80", true), Name: "the first partition of a GPU that is reset for it", Given: given(one), When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "another allocation", Given: func(e *env, p *process) { given(one, "a")(e, p); e.Claim("a", "0 2g.20gb 4") }, When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "the whole after partitions", Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Unprepare(p, "a")
		e.Claim("a", "0")
	}, When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "unprepare the last", Given: given(one, "a"), When: unprepares("a")},
	{New: h100, Name: "unprepare one of two", Given: given(beside, "a", "z"), When: unprepares("a"), Then: []string{"z"}},
	{New: h100, Name: "unprepare two GPUs", Given: given(map[string][]string{"a": {"0 1g.10gb 4", "1 7g.80gb 0"}}, "a"), When: unprepares("a")},
	{New: h100, Name: "unprepare over a damaged record", Given: func(e *env, p *process) { given(one, "a")(e, p); e.Damage("a") }, When: unprepares("a")},
	{New: h100, Name: "unprepare what vanished", Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], engine.AnyStart) })
	}, When: unprepares("a")},
	{New: h100, Name: "unprepare what another took the place of", Unmended: true, Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		e.Sim.Administrator(0, 19, 4, false)
	}, When: unprepares("a")},
	{New: h100, Name: "unprepare on a lost GPU", Unmended: true, Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Sim.Change(func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[0].Instances = true, nil })
	}, When: unprepares("a")},
	{New: h100, Name: "an administrator's partition", Given: func(e *env, p *process) { e.Sim.Administrator(0, 19, 4, false); given(one)(e, p) }, When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "unprepare an administrator's partition", Given: func(e *env, p *process) { e.Sim.Administrator(0, 19, 4, false); given(one, "a")(e, p) }, When: unprepares("a")},
	{New: h100, Name: "an administrator's partition in the way", Refused: true, Given: func(e *env, p *process) { e.Sim.Administrator(0, 14, 4, false); given(one)(e, p) }, When: prepares("a")},
	{New: h100, Name: "an administrator's half partition in the way", Refused: true, Given: func(e *env, p *process) { e.Sim.Administrator(0, 19, 4, true); given(one)(e, p) }, When: prepares("a")},
	{New: h100, Name: "an administrator's partition on a whole GPU", Refused: true, Given: func(e *env, p *process) {
		e.Sim.Administrator(0, 19, 4, false)
		e.Claim("a", "0")
	}, When: prepares("a")},
	{New: h100, Name: "beside an administrator's partition", Given: func(e *env, p *process) { e.Sim.Administrator(0, 9, 0, false); given(one)(e, p) }, When: prepares("a"), Then: []string{"a"}},
	{New: h100, Name: "an unused mode is put back", Given: func(e *env, p *process) {
		given(one, "a")(e, p)
		e.Unprepare(p, "a")
	}, When: func(e *env, p *process) error {
		g := e.Sim.GPU(0)
		return restoreIdle(p, g)
	}},
}

// restoreIdle restores the MIG mode of a GPU without claims.
func restoreIdle(p *process, g gpu.GPU) error {
	return p.WithGPULock(context.Background(), g.PCIAddress, func(plans []plan.Plan) error {
		if len(plans) > 0 {
			return nil
		}
		return p.MIG.Restore(context.Background(), g)
	})
}

var kinds = []hosttest.Kind{hosttest.Fail, hosttest.LoseAnswer, hosttest.CrashBefore, hosttest.CrashAfter}

// TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing strikes at every operation, of the machine or through NVML.
func TestExecutor_CrashAtEveryOperation_LosesAndLeaksNothing(t *testing.T) {
	devicestatetest.RunCrashMatrix(t, slices.Concat(scenarios, shareScenarios), kinds, []string{
		"nvml/set-mig-mode", "nvml/create-gpu-instance", "nvml/create-compute-instance", "nvml/destroy-compute-instance",
		"nvml/destroy-gpu-instance", "record.gpu", "record.gpu-remove", "record.intent", "record.commit", "record.undo",
	})
}
