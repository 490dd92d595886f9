// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/devicestate"
)

type (
	env     = devicestatetest.Env
	process = devicestatetest.Process
)

func prepares(uid string) func(*env, *process) error {
	return func(e *env, p *process) error {
		_, err := p.Prepare(context.Background(), e.Claims[uid])
		return err
	}
}

func unprepares(uid string) func(*env, *process) error {
	return func(_ *env, p *process) error {
		return p.Unprepare(context.Background(), devicestatetest.ClaimID(uid))
	}
}

func recovers(_ *env, p *process) error { return p.RecoverAll() }

// releases has the API server answer that claim a is gone.
func releases(e *env, p *process) error {
	claims, gone := e.Claims, maps.Clone(e.Claims)
	delete(gone, "a")
	e.Claims = gone
	defer func() { e.Claims = claims }()
	deleted := devicestate.NewDeletedClaims(p.Engine, &devicestatetest.APIServer{Env: e}, &usage{}, time.Hour)
	findings, err := deleted.Release(context.Background())
	for _, f := range findings {
		err = errors.Join(err, f.Err)
	}
	return err
}

// Most scenarios have two claims: the operation is on a, and z must stay prepared.
var scenarios = []devicestatetest.Scenario{
	{Name: "start on an empty machine", Given: first, When: func(*env, *process) error { return nil }, Starts: true},
	{Name: "first claim of an empty machine", Given: first, When: prepares("a"), Then: []string{"a"}, Starts: true},
	{Name: "prepare one GPU", Given: func(e *env, p *process) { standby(e, p); e.Claim("a", "0") }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare two GPUs", Given: func(e *env, p *process) { standby(e, p); e.Claim("a", "1", "0") }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a monitor and a GPU", Given: func(e *env, p *process) {
		standby(e, p)
		e.Claim("a", "monitor 3", "0")
	}, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a monitor of a held GPU", Given: func(e *env, p *process) { standby(e, p); e.Claim("a", "monitor 3") }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare with steps", Given: func(e *env, p *process) { standby(e, p); e.SteppedClaim("a", "0", "1") }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare without a CDI directory", Given: func(e *env, p *process) {
		e.Claim("a", "0")
		e.LoseCDI()
	},
		When: prepares("a"), Then: []string{"a"}},
	{Name: "prepare again", Given: bothPrepared, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare again without the spec", Given: func(e *env, p *process) {
		bothPrepared(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
	}, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare again without the metadata", Given: func(e *env, p *process) {
		bothPrepared(e, p)
		e.Must(os.Remove(e.MetadataFile("a", 0)))
	}, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare again with another minor number", Given: func(e *env, p *process) { bothPrepared(e, p); e.Snapshot.GPUs[0].Minor = 7 }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare another allocation", Given: func(e *env, p *process) {
		bothPrepared(e, p)
		e.Allocate(e.Claims["a"], "1", "2")
	}, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a deallocated claim", Given: func(e *env, p *process) { bothPrepared(e, p); e.Allocate(e.Claims["a"]) }, When: prepares("a"), Then: []string{"z"}},
	{Name: "prepare after a reboot", Given: func(e *env, p *process) { bothPrepared(e, p); e.Reboot(false) }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "unprepare", Given: func(e *env, p *process) {
		standby(e, p)
		e.Claim("a", "0")
		e.Prepare(p, "a")
	}, When: unprepares("a"), Then: []string{"z"}},
	{Name: "unprepare two GPUs with steps", Given: bothPrepared, When: unprepares("a"), Then: []string{"z"}},
	{Name: "unprepare without the first of two metadata files", Given: func(e *env, p *process) {
		bothPrepared(e, p)
		e.Must(os.Remove(e.MetadataFile("a", 0)))
	}, When: unprepares("a"), Then: []string{"z"}},
	{Name: "unprepare after a reboot", Given: func(e *env, p *process) { bothPrepared(e, p); e.Reboot(true) }, When: unprepares("a"), Then: []string{"z"}},
	{Name: "unprepare an unknown claim", Given: standby, When: unprepares("a"), Then: []string{"z"}},
	{Name: "recover without specs", Given: func(e *env, p *process) {
		bothPrepared(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
		e.Must(os.Remove(e.SpecFile("z")))
	},
		When: recovers, Then: []string{"a", "z"}},
	{Name: "recover after a reboot that kept the specs", Given: func(e *env, p *process) { bothPrepared(e, p); e.Reboot(true) }, When: recovers, Then: []string{"a", "z"}},
	{Name: "release a deleted claim of an earlier boot", Given: func(e *env, p *process) { bothPrepared(e, p); e.Reboot(true) }, When: releases, Then: []string{"z"}},
	{Name: "recover an orphan spec", Given: func(e *env, p *process) {
		bothPrepared(e, p)
		e.Must(os.Remove(e.RecordFile("a")))
		e.LoseSteps("a")
	}, When: recovers, Then: []string{"z"}},
	{Name: "recover a damaged record", Given: func(e *env, p *process) { bothPrepared(e, p); e.Damage("a") }, When: recovers, Then: []string{"a", "z"}},
	{Name: "prepare over a damaged record", Given: func(e *env, p *process) { bothPrepared(e, p); e.Damage("a") }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "unprepare a damaged record", Given: func(e *env, p *process) { bothPrepared(e, p); e.Damage("a") }, When: unprepares("a"), Then: []string{"z"}},
	{Name: "prepare a group", Given: func(e *env, p *process) { standby(e, p); e.GroupClaim("a", 0, 2) }, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a group with steps", Given: func(e *env, p *process) {
		standby(e, p)
		steps(e.GroupClaim("a", 0, 2))
	}, When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a group again without its file", Given: func(e *env, p *process) {
		grouped(e, p)
		e.Must(os.Remove(e.TopologyFile("a")))
	},
		When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a group again after a link failed", Given: func(e *env, p *process) {
		grouped(e, p)
		e.Snapshot.GPUs[1].Links = nil
	},
		When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a group after a reboot that changed the wiring", Given: func(e *env, p *process) {
		grouped(e, p)
		e.Reboot(false)
		e.Snapshot.GPUs[1].Links = nil
	},
		When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "prepare a GPU instead of a group", Given: func(e *env, p *process) {
		grouped(e, p)
		e.Allocate(e.Claims["a"], "0")
	},
		When: prepares("a"), Then: []string{"a", "z"}},
	{Name: "unprepare a group", Given: grouped, When: unprepares("a"), Then: []string{"z"}},
	{Name: "recover a group without specs", Given: func(e *env, p *process) {
		grouped(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
		e.Must(os.Remove(e.TopologyFile("a")))
	}, When: recovers, Then: []string{"a", "z"}},
	{Name: "recover a group's file without spec and record", Given: func(e *env, p *process) {
		grouped(e, p)
		e.Must(os.Remove(e.SpecFile("a")))
		e.Must(os.Remove(e.RecordFile("a")))
		e.LoseSteps("a")
	}, When: recovers, Then: []string{"z"}},
	{Name: "recover a group's damaged record", Given: func(e *env, p *process) { grouped(e, p); e.Damage("a") }, When: recovers, Then: []string{"a", "z"}},
	{Name: "prepare a group whose record and spec are both lost", Given: func(e *env, p *process) {
		grouped(e, p)
		e.Damage("a")
		e.Must(os.Remove(e.SpecFile("a")))
	}, When: prepares("a"), Then: []string{"a", "z"}, Unknown: true},
	{Name: "recover a record and spec both lost", Given: lost, When: func(e *env, p *process) error {
		return errors.Join(p.RecoverAll(), e.Identify(p), p.RecoverAll())
	},
		Then: []string{"a", "z"}, Unknown: true},
	{Name: "prepare a record and spec both lost", Given: lost, When: prepares("a"), Then: []string{"a", "z"}, Unknown: true},
	{Name: "unprepare a record and spec both lost", Given: func(e *env, p *process) {
		standby(e, p)
		e.Claim("a", "0")
		e.Prepare(p, "a")
		e.Damage("a")
		e.Must(os.Remove(e.SpecFile("a")))
	},
		When: unprepares("a"), Then: []string{"z"}, Unknown: true},
}

func first(e *env, _ *process) { e.SteppedClaim("a", "0", "1") }

func standby(e *env, p *process) {
	e.SteppedClaim("z", "3")
	e.Prepare(p, "z")
}

func steps(c *resourceapi.ResourceClaim) {
	c.Labels = map[string]string{devicestatetest.Stepped: string(c.UID)}
}

func grouped(e *env, p *process) {
	standby(e, p)
	steps(e.GroupClaim("a", 0, 2))
	e.Prepare(p, "a")
}

func bothPrepared(e *env, p *process) {
	standby(e, p)
	e.SteppedClaim("a", "0", "1")
	e.Prepare(p, "a")
}

func lost(e *env, p *process) {
	bothPrepared(e, p)
	e.Damage("a")
	e.Must(os.Remove(e.SpecFile("a")))
}

// TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing loses no answers, because system calls always return.
func TestEngine_CrashAtEveryOperation_LosesAndLeaksNothing(t *testing.T) {
	kinds := []hosttest.Kind{hosttest.Fail, hosttest.CrashBefore, hosttest.CrashAfter}
	devicestatetest.RunCrashMatrix(t, scenarios, kinds, labels(t))
}

func TestEngine_PowerCutAfterEveryOperation_KeepsCommits(t *testing.T) {
	devicestatetest.RunPowerCuts(t, scenarios)
}
