// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/executor/mps"
	"gpu-dra-driver/pkg/executor/timeslice"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
	"gpu-dra-driver/pkg/sharing"
	"gpu-dra-driver/sim/engine"
)

// sharers are the executors of shares over the rig's machine and its supervisor.
func (r *rig) sharers(h *host.Host, f *hosttest.Faults, library nvml.Library, dir string) (map[string]devicestate.Executor, error) {
	modes, err := record.OpenGPUs(h, dir, mps.Setting)
	if err != nil {
		return nil, err
	}
	slices, err := record.OpenGPUs(h, dir, timeslice.Setting)
	if err != nil {
		return nil, err
	}
	return map[string]devicestate.Executor{
		plan.MPSExecutor: mps.New(mps.Options{
			Host: h, Sessions: sessionpool.New(library, func(error) {}), Daemons: &daemons{r, f}, Modes: modes, ProcRoot: r.dir,
		}),
		plan.TimeSliceExecutor: timeslice.New(timeslice.Options{
			Host: h, Tool: tool{r, f}, Records: slices, There: func(uuid string) bool {
				g := r.board(uuid)
				return g != nil && !g.Lost
			},
		}),
	}, nil
}

func (r *rig) board(uuid string) *engine.GPU {
	s := r.state()
	for i := range s.GPUs {
		if s.GPUs[i].UUID == uuid {
			return &s.GPUs[i]
		}
	}
	return nil
}

// daemons is a supervisor that does as it is told, through a fault.
type daemons struct {
	r *rig
	f *hosttest.Faults
}

func (d *daemons) Ensure(_ context.Context, want mpsd.Daemon) (mpsd.Status, error) {
	if err := want.Validate(); err != nil {
		d.r.t.Error(err)
	}
	return mpsd.Status{Daemon: want, PID: 1}, d.f.Do(host.Operation{Label: "mpsd", Call: "ensure-daemon"}, func() error {
		d.r.daemons[want.Name] = want
		return nil
	})
}

func (d *daemons) Stop(_ context.Context, name string) error {
	return d.f.Do(host.Operation{Label: "mpsd", Call: "stop-daemon"}, func() error {
		delete(d.r.daemons, name)
		return nil
	})
}

func (d *daemons) List(context.Context, string) (mpsd.List, error) {
	var l mpsd.List
	for _, one := range d.r.daemons {
		l.Daemons = append(l.Daemons, mpsd.Status{Daemon: one, PID: 1})
	}
	return l, nil
}

// tool sets time slices, through a fault.
type tool struct {
	r *rig
	f *hosttest.Faults
}

func (t tool) Get(_ context.Context, uuid string) (int, error) {
	g := t.r.board(uuid)
	if g == nil || g.Lost {
		return 0, errors.New("GPU is lost")
	}
	return g.TimeSlice, nil
}

func (t tool) Set(_ context.Context, uuid string, interval int) error {
	return t.f.Do(host.Operation{Label: "nvidia-smi", Call: "set-time-slice"}, func() error {
		if g := t.r.board(uuid); g == nil || g.Lost {
			return errors.New("GPU is lost")
		}
		t.r.change(func(s *engine.State) {
			for i := range s.GPUs {
				if s.GPUs[i].UUID == uuid {
					s.GPUs[i].TimeSlice = interval
				}
			}
		})
		return nil
	})
}

// The parameters of shares.
const (
	byMPS  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`
	byLong = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`
	ofMIG  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`
)

// share makes an allocated claim of so many GiB of a device, 0 for all of it.
func (r *rig) share(uid string, gib int, parameters, device string) {
	r.claim(uid, device)
	a := r.claims[uid].Status.Allocation
	id := types.UID("share-" + uid)
	a.Devices.Results[0].ShareID = &id
	if gib > 0 {
		a.Devices.Results[0].ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(fmt.Sprintf("%dGi", gib))}
	}
	if parameters != "" {
		a.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		}}
	}
}

// unshared lists what is wrong with daemons, compute modes and time slices, with these claims prepared in this boot.
func (r *rig) unshared(plans []plan.Plan, prepared []string) (out []string) {
	wrong := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	daemons, exclusive, long := map[string]string{}, map[string]bool{}, map[string]bool{}
	for _, p := range plans {
		for _, d := range p.Devices {
			if !slices.Contains(prepared, p.Claim.UID) {
				continue
			}
			if d.MPS() {
				uuid := d.UUID
				if d.Kind == gpu.KindMIG {
					uuid = d.Partition.UUID
				}
				daemons[d.Name] = uuid
				exclusive[d.PCIAddress] = exclusive[d.PCIAddress] || d.Kind == gpu.KindGPU
				if limit := r.daemons[d.Name].MemoryLimit; limit < d.Sharing.MemoryLimit {
					wrong("the daemon of %s limits to %d, and claim %s has %d", d.Name, limit, p.Claim, d.Sharing.MemoryLimit)
				}
			}
			if d.Sharing.Timed && d.Sharing.Interval == 3 {
				long[d.PCIAddress] = true
			}
		}
	}
	for name, d := range r.daemons {
		if daemons[name] != d.UUID {
			wrong("a daemon of %s serves %s, wanted for %q", name, d.UUID, daemons[name])
		}
		delete(daemons, name)
	}
	for name := range daemons {
		wrong("no daemon serves %s", name)
	}
	for _, g := range r.state().GPUs {
		if want := nvml.ComputeExclusiveProcess; (nvml.ComputeMode(g.ComputeMode) == want) != exclusive[g.Address] {
			wrong("the compute mode of %s is %d, with MPS: %v", g.Address, g.ComputeMode, exclusive[g.Address])
		}
		if (g.TimeSlice == 3) != long[g.Address] {
			wrong("the time slice of %s is %d, wanted long: %v", g.Address, g.TimeSlice, long[g.Address])
		}
	}
	return out
}

// shares makes claims with a share each of one device, of which those named are prepared.
func shares(parameters, device string, uids []string, prepared ...string) func(*rig, process) {
	return func(r *rig, p process) {
		for n, uid := range uids {
			r.share(uid, 3+n, parameters, device)
		}
		for _, uid := range prepared {
			r.prepare(p, uid)
		}
	}
}

func init() {
	a, ab := []string{"a"}, []string{"a", "b"}
	part := "0 1g.10gb 4"
	scenarios = append(scenarios,
		scenario{name: "the first share of a GPU", given: shares(byMPS, "0", a), when: prepares("a"), then: a},
		scenario{name: "a share beside another", given: shares(byMPS, "0", ab, "a"), when: prepares("b"), then: ab},
		scenario{name: "a share again", given: shares(byMPS, "0", ab, "a", "b"), when: prepares("a"), then: ab},
		scenario{name: "unprepare one of two shares", given: shares(byMPS, "0", ab, "a", "b"), when: unprepares("a"), then: []string{"b"}},
		scenario{name: "unprepare the last share", given: shares(byMPS, "0", a, "a"), when: unprepares("a")},
		scenario{name: "unprepare a share over a damaged record", given: func(r *rig, p process) { shares(byMPS, "0", ab, "a", "b")(r, p); r.damage("a") },
			when: unprepares("a"), then: []string{"b"}},
		scenario{name: "shares after a reboot", given: func(r *rig, p process) { shares(byMPS, "0", a, "a")(r, p); r.reboot() }, when: prepares("a"), then: a},
		scenario{name: "a whole GPU by MPS", given: func(r *rig, _ process) { r.share("a", 0, byMPS, "0") }, when: prepares("a"), then: a},
		scenario{name: "the first share of a partition", given: shares(ofMIG, part, a), when: prepares("a"), then: a},
		scenario{name: "a share of a partition beside another", given: shares(ofMIG, part, ab, "a"), when: prepares("b"), then: ab},
		scenario{name: "unprepare one of two shares of a partition", given: shares(ofMIG, part, ab, "a", "b"), when: unprepares("a"), then: []string{"b"}},
		scenario{name: "unprepare the last share of a partition", given: shares(ofMIG, part, a, "a"), when: unprepares("a")},
		scenario{name: "a share of a partition that vanished", given: func(r *rig, p process) {
			shares(ofMIG, part, a, "a")(r, p)
			r.change(func(s *engine.State) { s.Vanish(&s.GPUs[0], 4) })
		}, when: prepares("a"), then: a},
		scenario{name: "a share by long time slices", given: shares(byLong, "0", a), when: prepares("a"), then: a},
		scenario{name: "unprepare one of two by time slices", given: shares(byLong, "0", ab, "a", "b"), when: unprepares("a"), then: []string{"b"}},
		scenario{name: "unprepare the last by time slices", given: shares(byLong, "0", a, "a"), when: unprepares("a")},
		scenario{name: "unprepare a share of a lost GPU", given: func(r *rig, p process) {
			shares(byMPS, "0", a, "a")(r, p)
			r.change(func(s *engine.State) { s.GPUs[0].Lost, s.GPUs[0].ComputeMode = true, 0 })
		}, when: unprepares("a")},
	)
}

// TestSharesThatAreTooMuchAreRefused plays a scheduler that overdraws a device.
func TestSharesThatAreTooMuchAreRefused(t *testing.T) {
	r := newRig(t, "hgx-h100")
	p := r.run()
	r.share("a", 40, byMPS, "0")
	r.share("b", 39, byMPS, "0")
	r.share("c", 1, byMPS, "0")
	r.share("d", 0, "", "0")
	r.prepare(p, "a")
	r.prepare(p, "b")
	for _, uid := range []string{"c", "d"} {
		if _, err := p.Prepare(context.Background(), r.claims[uid]); err == nil {
			t.Errorf("claim %s has a share of a GPU that is full", uid)
		}
	}
	r.clean(p, "a", "b")
	r.must(p.Unprepare(context.Background(), claimOf("a")))
	r.prepare(p, "c")
	r.clean(p, "b", "c")
}

// TestSharesStandWhenTheNodesSettingsChange has a kubelet that restarts prepare them again.
func TestSharesStandWhenTheNodesSettingsChange(t *testing.T) {
	r := newRig(t, "hgx-h100")
	p := r.run()
	r.share("a", 3, "", "0")
	r.share("b", 8, "", "0")
	r.share("both", 3, byMPS, "2")
	r.prepare(p, "both")
	r.prepare(p, "a")
	r.prepare(p, "b")
	p.host.Close()
	r.policy, r.noMPS = sharing.Policy{Strategy: v1beta1.StrategyTimeSlicing, Replicas: 4, Interval: v1beta1.IntervalLong}, "switched off"
	p = r.run()
	for _, uid := range []string{"a", "b", "both"} {
		r.prepare(p, uid)
	}
	r.clean(p, "a", "b", "both")
	r.must(p.Unprepare(context.Background(), claimOf("both")))
	r.share("c", 3, byMPS, "1")
	if _, err := p.Prepare(context.Background(), r.claims["c"]); err == nil || !strings.Contains(err.Error(), "switched off") {
		t.Errorf("a share by MPS on a node that has none any more: %v", err)
	}
	r.must(p.Unprepare(context.Background(), claimOf("b")))
	r.clean(p, "a")
	r.must(p.Unprepare(context.Background(), claimOf("a")))
	r.clean(p)
}

// TestAShareDoesNotJoinAClaimThatIsHalfPrepared leaves a claim's undoing undone.
func TestAShareDoesNotJoinAClaimThatIsHalfPrepared(t *testing.T) {
	for name, c := range map[string]struct{ parameters, device string }{"MPS": {byMPS, "0"}, "partition": {`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing"}}`, "0 1g.10gb 4"}} {
		t.Run(name, func(t *testing.T) {
			// It dies at each effect in turn, until it leaves an intent behind.
			for at := range 40 {
				r := newRig(t, "hgx-h100")
				r.share("a", 3, c.parameters, c.device)
				r.share("b", 3, c.parameters, c.device)
				f := hosttest.At(at, hosttest.CrashBefore)
				p, err := r.start(f)
				r.must(err)
				f.Arm()
				died, _ := hosttest.Run(func() error { _, err := p.Prepare(context.Background(), r.claims["a"]); return err })
				p.host.Close()
				p = r.run()
				plans, _, err := p.Held()
				r.must(err)
				if !died || len(plans) == 0 {
					continue
				}
				if _, err := p.Prepare(context.Background(), r.claims["b"]); err == nil || !strings.Contains(err.Error(), "ns/a") {
					t.Errorf("b joined a claim of which some effects may be there: %v", err)
				}
				r.must(p.recover())
				r.prepare(p, "b")
				r.clean(p, "b")
				return
			}
			t.Error("it never left an intent")
		})
	}
}

// TestShareWalk has shares, wholes and partitions come and go at random, with faults, deaths and reboots.
func TestShareWalk(t *testing.T) {
	const steps = 1500
	r := newRig(t, "hgx-h100")
	random := rand.New(rand.NewPCG(11, 7))
	p := r.run()
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
			p.host.Close()
			r.reboot()
			p = r.run()
			r.must(p.recover())
			for _, uid := range names() {
				r.prepare(p, uid)
			}
			r.clean(p, names()...)
			continue
		}
		p.host.Close()
		q, err := r.start(f)
		r.must(err)
		f.Arm()
		was := prepared[uid]
		var died bool
		if was {
			died, err = hosttest.Run(func() error { return q.Unprepare(context.Background(), claimOf(uid)) })
		} else {
			r.anyShare(random, uid)
			died, err = hosttest.Run(func() error { _, err := q.Prepare(context.Background(), r.claims[uid]); return err })
		}
		f.Disarm()
		q.host.Close()
		p = r.run()
		if died || err != nil {
			deaths++
			r.must(p.recover())
			// The kubelet tries again, or gives up.
			if was || random.IntN(2) == 0 {
				r.must(p.Unprepare(context.Background(), claimOf(uid)))
				delete(prepared, uid)
			} else if _, err := p.Prepare(context.Background(), r.claims[uid]); err == nil {
				prepared[uid] = true
			}
		} else if was {
			delete(prepared, uid)
		} else {
			prepared[uid] = true
			given++
		}
		r.clean(p, names()...)
	}
	if given < steps/10 || deaths < steps/20 {
		t.Errorf("%d claims were prepared and %d faults met, which proves little", given, deaths)
	}
}

// anyShare makes a claim of something.
func (r *rig) anyShare(random *rand.Rand, uid string) {
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
	r.share(uid, random.IntN(20), parameters, device)
}
