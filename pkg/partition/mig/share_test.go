// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/internal/testing/sharingtest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/sim/engine"
)

// The parameters of shares.
const (
	byMPS  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`
	byLong = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`
	ofMIG  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`
)

// shares makes claims with a share each of one device, of which those named are prepared.
func shares(parameters, device string, uids []string, prepared ...string) func(*env, *process) {
	return sharesOf(parameters, []string{device}, uids, prepared...)
}

// sharesOf makes claims with a request for a share of each of the devices.
func sharesOf(parameters string, devices, uids []string, prepared ...string) func(*env, *process) {
	return func(e *env, p *process) {
		for n, uid := range uids {
			e.SharedClaim(uid, 3+n, parameters, devices...)
		}
		for _, uid := range prepared {
			e.Prepare(p, uid)
		}
	}
}

var shareScenarios = func() []devicestatetest.Scenario {
	a, ab := []string{"a"}, []string{"a", "b"}
	part, twice := "0 1g.10gb 4", []string{"0", "0"}
	return []devicestatetest.Scenario{
		{New: h100, Name: "the first share of a GPU", Given: shares(byMPS, "0", a), When: prepares("a"), Then: a},
		{New: h100, Name: "a share beside another", Given: shares(byMPS, "0", ab, "a"), When: prepares("b"), Then: ab},
		{New: h100, Name: "a share again", Given: shares(byMPS, "0", ab, "a", "b"), When: prepares("a"), Then: ab},
		{New: h100, Name: "unprepare one of two shares", Given: shares(byMPS, "0", ab, "a", "b"), When: unprepares("a"), Then: []string{"b"}},
		{New: h100, Name: "unprepare the last share", Given: shares(byMPS, "0", a, "a"), When: unprepares("a")},
		{New: h100, Name: "unprepare a share over a damaged record", Given: func(e *env, p *process) { shares(byMPS, "0", ab, "a", "b")(e, p); e.Damage("a") },
			When: unprepares("a"), Then: []string{"b"}},
		{New: h100, Name: "shares after a reboot", Given: func(e *env, p *process) { shares(byMPS, "0", a, "a")(e, p); e.Reboot(false) }, When: prepares("a"), Then: a},
		{New: h100, Name: "a whole GPU by MPS", Given: func(e *env, _ *process) { e.SharedClaim("a", 0, byMPS, "0") }, When: prepares("a"), Then: a},
		{New: h100, Name: "the first share of a partition", Given: shares(ofMIG, part, a), When: prepares("a"), Then: a},
		{New: h100, Name: "a share of a partition beside another", Given: shares(ofMIG, part, ab, "a"), When: prepares("b"), Then: ab},
		{New: h100, Name: "unprepare one of two shares of a partition", Given: shares(ofMIG, part, ab, "a", "b"), When: unprepares("a"), Then: []string{"b"}},
		{New: h100, Name: "unprepare the last share of a partition", Given: shares(ofMIG, part, a, "a"), When: unprepares("a")},
		{New: h100, Name: "a share of a partition that vanished", Given: func(e *env, p *process) {
			shares(ofMIG, part, a, "a")(e, p)
			e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		}, When: prepares("a"), Then: a},
		{New: h100, Name: "a share by long time slices", Given: shares(byLong, "0", a), When: prepares("a"), Then: a},
		{New: h100, Name: "unprepare one of two by time slices", Given: shares(byLong, "0", ab, "a", "b"), When: unprepares("a"), Then: []string{"b"}},
		{New: h100, Name: "unprepare the last by time slices", Given: shares(byLong, "0", a, "a"), When: unprepares("a")},
		{New: h100, Name: "two requests of one GPU", Given: sharesOf(byMPS, twice, a), When: prepares("a"), Then: a},
		{New: h100, Name: "two requests of one GPU beside two more", Given: sharesOf(byMPS, twice, ab, "b"), When: prepares("a"), Then: ab},
		{New: h100, Name: "two requests of one GPU after a reboot", Given: func(e *env, p *process) { sharesOf(byMPS, twice, a, "a")(e, p); e.Reboot(false) },
			When: prepares("a"), Then: a},
		{New: h100, Name: "unprepare two requests of one GPU", Given: sharesOf(byMPS, twice, ab, "a", "b"), When: unprepares("a"), Then: []string{"b"}},
		{New: h100, Name: "unprepare two requests of one GPU over a damaged record", Given: func(e *env, p *process) { sharesOf(byMPS, twice, ab, "a", "b")(e, p); e.Damage("a") },
			When: unprepares("a"), Then: []string{"b"}},
		{New: h100, Name: "two requests of two GPUs", Given: sharesOf(byMPS, []string{"0", "1"}, ab, "b"), When: prepares("a"), Then: ab},
		{New: h100, Name: "unprepare two requests of two GPUs", Given: sharesOf(byMPS, []string{"0", "1"}, a, "a"), When: unprepares("a")},
		{New: h100, Name: "two requests of one partition", Given: sharesOf(ofMIG, []string{part, part}, a), When: prepares("a"), Then: a},
		{New: h100, Name: "two requests of a partition that vanished", Given: func(e *env, p *process) {
			sharesOf(ofMIG, []string{part, part}, a, "a")(e, p)
			e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		}, When: prepares("a"), Then: a},
		{New: h100, Name: "unprepare two requests of one partition", Given: sharesOf(ofMIG, []string{part, part}, a, "a"), When: unprepares("a")},
		{New: h100, Name: "unprepare two requests by time slices", Given: sharesOf(byLong, twice, a, "a"), When: unprepares("a")},
		{New: h100, Name: "unprepare a share of a lost GPU", Unmended: true, Given: func(e *env, p *process) {
			shares(byMPS, "0", a, "a")(e, p)
			e.Sim.Change(func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[0].ComputeMode = true, 0 })
		}, When: unprepares("a")},
	}
}()

// TestPrepare_SharesExceedGPU_Refused plays a scheduler that overdraws a device.
func TestPrepare_SharesExceedGPU_Refused(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.SharedClaim("a", 40, byMPS, "0")
	e.SharedClaim("b", 39, byMPS, "0")
	e.SharedClaim("c", 1, byMPS, "0")
	e.SharedClaim("d", 0, "", "0")
	e.Prepare(p, "a")
	e.Prepare(p, "b")
	for _, uid := range []string{"c", "d"} {
		if _, err := p.Prepare(context.Background(), e.Claims[uid]); err == nil {
			t.Errorf("claim %s has a share of a GPU that is full", uid)
		}
	}
	e.CheckClean(p, "a", "b")
	e.Unprepare(p, "a")
	e.Prepare(p, "c")
	e.CheckClean(p, "b", "c")
	// Beside b and c are 39 GiB: one claim takes them with two requests, and another is too much.
	e.SharedClaim("e", 19, byMPS, "0", "0")
	e.SharedClaim("f", 1, byMPS, "0")
	e.SharedClaim("g", 20, byMPS, "0", "0")
	if _, err := p.Prepare(context.Background(), e.Claims["g"]); err == nil {
		t.Error("claim g has two shares, of which the GPU has room for one")
	}
	e.Prepare(p, "e")
	if _, err := p.Prepare(context.Background(), e.Claims["f"]); err == nil {
		t.Error("claim f has a share of a GPU that is full by a claim with two")
	}
	e.CheckClean(p, "b", "c", "e")
}

// TestPrepare_SharingPolicyChanges_KeepsShares has a kubelet that restarts prepare them again.
func TestPrepare_SharingPolicyChanges_KeepsShares(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.SharedClaim("a", 3, "", "0")
	e.SharedClaim("b", 8, "", "0")
	e.SharedClaim("both", 3, byMPS, "2")
	e.SharedClaim("two", 3, byMPS, "3", "3")
	e.Prepare(p, "two")
	e.Prepare(p, "both")
	e.Prepare(p, "a")
	e.Prepare(p, "b")
	p.Crash()
	policy := sharing.Policy{Strategy: v1beta1.StrategyTimeSlicing, Replicas: 4, MaxShares: 1, Interval: v1beta1.IntervalLong}
	e.Configure = func(o *devicestate.Options) {
		o.Sharing, o.NoMPS = sharingtest.Source{PolicyOfAll: policy}, "switched off"
	}
	p = e.Start()
	for _, uid := range []string{"a", "b", "both", "two"} {
		e.Prepare(p, uid)
	}
	e.CheckClean(p, "a", "b", "both", "two")
	e.Unprepare(p, "both")
	e.Unprepare(p, "two")
	e.SharedClaim("c", 3, byMPS, "1")
	if _, err := p.Prepare(context.Background(), e.Claims["c"]); err == nil || !strings.Contains(err.Error(), "switched off") {
		t.Errorf("a share by MPS on a node that has none any more: %v", err)
	}
	e.Unprepare(p, "b")
	e.CheckClean(p, "a")
	e.Unprepare(p, "a")
	e.CheckClean(p)
}

// TestPrepare_SharingPolicyChanged_JoinsShares: a GPU keeps the sharing of the claims that it has until the last is gone.
func TestPrepare_SharingPolicyChanged_JoinsShares(t *testing.T) {
	for name, c := range map[string]struct{ before, after sharing.Policy }{
		"MPS to time-slicing": {sharing.Policy{}, sharing.Policy{Strategy: v1beta1.StrategyTimeSlicing, Interval: v1beta1.IntervalLong}},
		"time-slicing to MPS": {sharing.Policy{Strategy: v1beta1.StrategyTimeSlicing, Interval: v1beta1.IntervalLong}, sharing.Policy{}},
		"another interval": {sharing.Policy{Strategy: v1beta1.StrategyTimeSlicing, Interval: v1beta1.IntervalLong},
			sharing.Policy{Strategy: v1beta1.StrategyTimeSlicing, Interval: v1beta1.IntervalShort}},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			policy := sharingtest.Source{PolicyOfAll: c.before}
			e.Configure = func(o *devicestate.Options) { o.Sharing = &policy }
			p := e.Start()
			prepare := func(uid, device string) plan.Sharing {
				t.Helper()
				e.SharedClaim(uid, 3, "", device)
				devices, err := p.Prepare(t.Context(), e.Claims[uid])
				e.Must(err)
				return devices[0].Sharing
			}
			first := prepare("a", "0")
			policy.PolicyOfAll = c.after
			joined, other := prepare("b", "0"), prepare("c", "1")
			if joined.Strategy != first.Strategy || joined.Timed != first.Timed || joined.Interval != first.Interval {
				t.Errorf("a share beside %+v is %+v", first, joined)
			}
			if other.Strategy == first.Strategy && other.Interval == first.Interval {
				t.Errorf("the other GPU has the old setting: %+v", other)
			}
			e.SharedClaim("named", 3, map[bool]string{true: byLong, false: byMPS}[first.Strategy == v1beta1.StrategyMPS], "0")
			if _, err := p.Prepare(t.Context(), e.Claims["named"]); err == nil || !strings.Contains(err.Error(), "this claim wants") {
				t.Errorf("a claim that names another strategy: %v", err)
			}
			e.CheckClean(p, "a", "b", "c")
			e.Unprepare(p, "a")
			e.Unprepare(p, "b")
			if d := prepare("d", "0"); d.Strategy != other.Strategy || d.Interval != other.Interval {
				t.Errorf("the empty GPU has the old setting: %+v", d)
			}
			e.CheckClean(p, "c", "d")
		})
	}
}

// TestPrepare_JoinedSharesAfterReboot_Agree prepares the claim that named no strategy first.
func TestPrepare_JoinedSharesAfterReboot_Agree(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.SharedClaim("named", 3, byLong, "0")
	e.SharedClaim("joined", 3, "", "0")
	e.Prepare(p, "named")
	e.Prepare(p, "joined")
	p.Crash()
	e.Reboot(false)
	p = e.Start()
	e.Prepare(p, "joined")
	e.Prepare(p, "named")
	e.CheckClean(p, "named", "joined")
}

// TestPrepare_ShareOfHalfPreparedDevice_Refused leaves a claim's undoing undone.
func TestPrepare_ShareOfHalfPreparedDevice_Refused(t *testing.T) {
	for name, c := range map[string]struct{ parameters, device string }{"MPS": {byMPS, "0"}, "partition": {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing"}}`, "0 1g.10gb 4"}} {
		t.Run(name, func(t *testing.T) {
			// It crashes at each effect in turn, until it leaves an intent behind.
			for at := range 40 {
				e := devicestatetest.NewSimulated(t, "hgx-h100")
				e.SharedClaim("a", 3, c.parameters, c.device)
				e.SharedClaim("b", 3, c.parameters, c.device)
				f := hosttest.At(at, hosttest.CrashBefore)
				p, err := e.StartWith(f.Do)
				e.Must(err)
				f.Arm()
				died, _ := hosttest.Run(func() error { _, err := p.Prepare(context.Background(), e.Claims["a"]); return err })
				p.Crash()
				p = e.Start()
				plans, _, err := p.Held()
				e.Must(err)
				if !died || len(plans) == 0 {
					continue
				}
				if _, err := p.Prepare(context.Background(), e.Claims["b"]); err == nil || !strings.Contains(err.Error(), "default/claim-a") {
					t.Errorf("b joined a claim of which some effects may be there: %v", err)
				}
				e.Recover(p)
				e.Prepare(p, "b")
				e.CheckClean(p, "b")
				return
			}
			t.Error("it never left an intent")
		})
	}
}

// TestShares_RandomMoves_KeepsInvariants has shares, wholes and partitions come and go at random, with faults, deaths and reboots.
func TestShares_RandomMoves_KeepsInvariants(t *testing.T) {
	steps := seedtest.Count(1500)
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	random := rand.New(rand.NewPCG(seedtest.Base(t), 7))
	p := e.Start()
	prepared := map[string]bool{}
	names := func() (out []string) {
		for uid := range prepared {
			out = append(out, uid)
		}
		slices.Sort(out)
		return out
	}
	given, deaths := 0, 0
	for range steps {
		uid := fmt.Sprintf("c%d", random.IntN(12))
		f := hosttest.At(random.IntN(14), kinds[random.IntN(4)])
		if random.IntN(2) == 0 {
			f = hosttest.Trace()
		}
		if random.IntN(60) == 0 {
			// The effects end with the boot; the claims stay, and the kubelet prepares them again.
			p.Crash()
			e.Reboot(false)
			p = e.Start()
			e.Recover(p)
			for _, uid := range names() {
				e.Prepare(p, uid)
			}
			e.CheckClean(p, names()...)
			continue
		}
		p.Crash()
		q, err := e.StartWith(f.Do)
		e.Must(err)
		f.Arm()
		was := prepared[uid]
		var died bool
		if was {
			died, err = hosttest.Run(func() error { return q.Unprepare(context.Background(), devicestatetest.ClaimID(uid)) })
		} else {
			anyShare(e, random, uid)
			died, err = hosttest.Run(func() error { _, err := q.Prepare(context.Background(), e.Claims[uid]); return err })
		}
		f.Disarm()
		q.Crash()
		p = e.Start()
		if died || err != nil {
			deaths++
			e.Recover(p)
			// The kubelet tries again, or gives up.
			if was || random.IntN(2) == 0 {
				e.Unprepare(p, uid)
				delete(prepared, uid)
			} else if _, err := p.Prepare(context.Background(), e.Claims[uid]); err == nil {
				prepared[uid] = true
			}
		} else if was {
			delete(prepared, uid)
		} else {
			prepared[uid] = true
			given++
		}
		e.CheckClean(p, names()...)
	}
	if given < steps/10 || deaths < steps/20 {
		t.Errorf("%d claims were prepared and %d faults met, which proves little", given, deaths)
	}
}

// anyShare creates a claim of any shared device.
func anyShare(e *env, random *rand.Rand, uid string) {
	device, n := "", random.IntN(3)
	parameters := []string{byMPS, byLong, ""}[random.IntN(3)]
	switch random.IntN(4) {
	case 0:
		device, parameters = fmt.Sprintf("%d 3g.40gb 4", n), []string{ofMIG, ""}[random.IntN(2)]
	case 1:
		device, parameters = fmt.Sprintf("%d 1g.10gb %d", n, random.IntN(4)), ""
	default:
		device = fmt.Sprint(n)
	}
	devices := []string{device, device}
	e.SharedClaim(uid, random.IntN(20), parameters, devices[:1+random.IntN(2)]...)
}

func TestPrepare_TwoRequestsOfPartition_ShareIt(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.SharedClaim("a", 3, ofMIG, "0 1g.10gb 4", "0 1g.10gb 4")
	devices := e.Prepare(p, "a")
	if len(devices) != 2 || devices[0].Partition.UUID == "" || devices[0].Partition != devices[1].Partition {
		t.Errorf("the requests have the partitions %+v", devices)
	}
	e.CheckClean(p, "a")
}

// TestPrepare_SharedPartitionDestroyed_NamesTheClaimThatLostIt has a claim join a partition that an administrator destroyed.
func TestPrepare_SharedPartitionDestroyed_NamesTheClaimThatLostIt(t *testing.T) {
	for name, destroy := range map[string]func(s *engine.State, g *engine.GPU){
		"compute instance": func(s *engine.State, g *engine.GPU) { s.DestroyCompute(g, g.Instances[0].ID, 0) },
		"partition": func(s *engine.State, g *engine.GPU) {
			s.DestroyCompute(g, g.Instances[0].ID, 0)
			s.DestroyInstance(g, g.Instances[0].ID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			p := e.Start()
			e.SharedClaim("a", 2, slicedMIG, "0 1g.10gb 4")
			e.SharedClaim("b", 4, slicedMIG, "0 1g.10gb 4")
			e.Prepare(p, "a")
			e.Sim.Change(func(s *engine.State) { destroy(s, &s.GPUs[0]) })
			for range 2 {
				e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "default/claim-b", "mig-1g-10gb-4",
					"claim default/claim-a (UID a)", "Delete the pod of that claim")
			}
			e.Unprepare(p, "a")
			e.Prepare(p, "b")
			e.CheckClean(p, "b")
		})
	}
}

// TestPrepare_ShareOfPartition_SetsItsComputeModeWhereItHasOne checks that no process of a partition bypasses its daemon. The
// drivers before CUDA 13.3 cannot prevent it.
func TestPrepare_ShareOfPartition_SetsItsComputeModeWhereItHasOne(t *testing.T) {
	for _, c := range []struct {
		cuda     int
		external bool
		want     nvml.ComputeMode
	}{{13000, false, nvml.ComputeDefault}, {13030, false, nvml.ComputeExclusiveProcess}, {13030, true, nvml.ComputeDefault}} {
		e := devicestatetest.NewSimulated(t, "hgx-h100")
		e.Sim.Change(func(s *engine.State) { s.Profile.Driver.CUDA = c.cuda })
		if c.external {
			e.Sim.Administrator(0, 19, 4, false)
		}
		p := e.Start()
		shares(ofMIG, "0 1g.10gb 4", []string{"a", "b"}, "a", "b")(e, p)
		if is := nvml.ComputeMode(e.Sim.State().GPUs[0].Instances[0].Computes[0].ComputeMode); is != c.want {
			t.Errorf("CUDA %d, external %v: compute mode %v, want %v", c.cuda, c.external, is, c.want)
		}
		e.Unprepare(p, "a")
		e.Unprepare(p, "b")
		e.CheckClean(p)
	}
}
