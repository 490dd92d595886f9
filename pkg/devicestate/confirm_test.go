// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

// spec returns the CDI spec of a claim, or nil.
func spec(e *env, uid string) *specs.Spec {
	e.T.Helper()
	data, err := os.ReadFile(e.SpecFile(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	e.Must(err)
	s := new(specs.Spec)
	e.Must(json.Unmarshal(data, s))
	return s
}

// checkNumbers checks that no spec contains a device node of a GPU or partition that is not its claim's now. It reads the
// simulator's state only.
func checkNumbers(e *env) {
	e.T.Helper()
	now := e.Sim.State()
	for uid := range e.Claims {
		s := spec(e, uid)
		if s == nil {
			continue
		}
		for _, d := range s.Devices {
			name := strings.TrimPrefix(d.Name, uid+"-")
			name, _, _ = strings.Cut(name, "-share-")
			device, err := gpu.ParseName(name)
			e.Must(err)
			allowed := map[string]bool{}
			for i, g := range now.GPUs {
				first := slices.IndexFunc(now.GPUs, func(g engine.GPU) bool { return g.Address == device.PCIAddress })
				if !now.DriverLoaded || g.OffBus || i < first || i >= first+max(device.Size, 1) {
					continue
				}
				allowed[fmt.Sprintf("/dev/nvidia%d", g.Minor)] = true
				for _, gi := range g.Instances {
					if device.Kind == gpu.KindMIG && gi.Start == device.Start {
						allowed[fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", engine.InstanceMinor(g.Minor, gi.ID))] = true
					}
				}
			}
			for _, n := range d.ContainerEdits.DeviceNodes {
				if !allowed[n.Path] {
					e.T.Errorf("the spec of claim %s gives a container %s for %s, which has %v", uid, n.Path, name, allowed)
				}
			}
		}
	}
}

const (
	byMPS  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`
	byTime = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`
	ofMIG  = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS"}}`
)

// holders are claims of each kind, of GPU 0 or more.
var holders = map[string]func(e *env){
	"whole GPU":              func(e *env) { e.Claim("a", "0") },
	"several GPUs":           func(e *env) { e.Claim("a", "0", "2") },
	"monitor":                func(e *env) { e.Claim("a", "monitor 0") },
	"NVLink group":           func(e *env) { e.GroupClaim("a", 0, 2) },
	"partition":              func(e *env) { e.Claim("a", "0 1g.10gb 4") },
	"MPS share":              func(e *env) { e.SharedClaim("a", 10, byMPS, "0") },
	"time slice":             func(e *env) { e.SharedClaim("a", 10, byTime, "0") },
	"partition share":        func(e *env) { e.SharedClaim("a", 4, ofMIG, "0 1g.10gb 4") },
	"GPU beside a partition": func(e *env) { e.Claim("a", "2", "0 1g.10gb 4") },
}

// kernelChanges concern GPU 0 and the numbers; rewrites reports whether Recover can write the spec of a kind of claim again.
var kernelChanges = map[string]struct {
	do       func(s *engine.State)
	restore  func(s *engine.State)
	rewrites func(kind string) bool
}{
	"GPU 1 gets the number of GPU 0, which is gone": {
		do: func(s *engine.State) {
			s.Remove(&s.GPUs[0])
			s.Remove(&s.GPUs[1])
			s.Add(&s.GPUs[1])
		},
		restore:  func(s *engine.State) { s.Add(&s.GPUs[0]) },
		rewrites: func(string) bool { return false },
	},
	"reload with other numbers": {
		do: func(s *engine.State) {
			s.Remove(&s.GPUs[0])
			s.Remove(&s.GPUs[1])
			s.Add(&s.GPUs[1])
			s.Add(&s.GPUs[0])
		},
		rewrites: func(kind string) bool { return !strings.Contains(kind, "partition") },
	},
	"reload with the same numbers": {
		do: func(s *engine.State) {
			s.Remove(&s.GPUs[0])
			s.Add(&s.GPUs[0])
		},
		rewrites: func(kind string) bool { return !strings.Contains(kind, "partition") },
	},
	"no driver": {
		do:       func(s *engine.State) { s.DriverLoaded = false },
		restore:  func(s *engine.State) { s.DriverLoaded = true },
		rewrites: func(string) bool { return false },
	},
	"other numbers, and partitions stay": {
		do:       func(s *engine.State) { s.GPUs[0].Minor, s.GPUs[1].Minor = 1, 0 },
		rewrites: func(string) bool { return true },
	},
}

func TestRecover_KernelChanges_NoSpecNamesAnotherDevice(t *testing.T) {
	for change, c := range kernelChanges {
		for kind, claim := range holders {
			t.Run(kind+", "+change, func(t *testing.T) {
				e := devicestatetest.NewSimulated(t, "hgx-h100")
				p := e.Start()
				claim(e)
				e.Claim("other", "1")
				if kind == "NVLink group" {
					e.Claim("other", "3")
				}
				e.Prepare(p, "a")
				e.Prepare(p, "other")
				checkNumbers(e)
				e.Sim.Change(c.do)
				_ = p.RecoverAll() // Claims without their devices have errors.
				checkNumbers(e)
				if got, want := spec(e, "a") != nil, c.rewrites(kind); got != want {
					t.Errorf("after Recover the claim has a spec: %v, want %v. Reports: %v", got, want, e.Reports)
				}
				if spec(e, "a") == nil && (len(e.Reports) == 0 || !strings.Contains(e.Reports[0].Error(), "it was removed")) {
					t.Errorf("no report says why the spec was removed: %v", e.Reports)
				}
				if change != "no driver" && spec(e, "other") == nil {
					t.Error("a claim whose GPU is there lost its spec")
				}
				if change == "no driver" && spec(e, "other") != nil {
					t.Error("a spec outlived the driver")
				}
				_, err := p.Prepare(t.Context(), e.Claims["a"])
				checkNumbers(e)
				if (err == nil) != (spec(e, "a") != nil) {
					t.Errorf("Prepare: %v, with a spec: %v", err, spec(e, "a") != nil)
				}
				if err != nil && claimerror.KindOf(err) != claimerror.Transient {
					t.Errorf("a later Prepare can succeed: %v", err)
				}
				if c.restore != nil {
					e.Sim.Change(c.restore)
				}
				e.Prepare(p, "a")
				e.Prepare(p, "other")
				checkNumbers(e)
				e.Unprepare(p, "a")
				e.Unprepare(p, "other")
				e.CheckClean(p)
			})
		}
	}
}

func TestUnprepare_SpecWasRemoved_Succeeds(t *testing.T) {
	for kind, claim := range holders {
		t.Run(kind, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			p := e.Start()
			claim(e)
			e.Prepare(p, "a")
			e.Sim.Change(func(s *engine.State) { s.DriverLoaded = false })
			_ = p.RecoverAll()
			if spec(e, "a") != nil {
				t.Fatal("a spec outlived the driver")
			}
			e.Unprepare(p, "a")
			e.Sim.Change(func(s *engine.State) { s.DriverLoaded = true })
			e.Recover(p)
		})
	}
}

func TestRecover_DriverComesBack_WritesSpecsAgain(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	p.Crash()
	e.Sim.Change(func(s *engine.State) { s.DriverLoaded = false })
	p = e.Start() // The plugin starts before the driver is loaded.
	if p.RecoverAll() == nil || spec(e, "a") != nil {
		t.Error("the spec was kept, or no error reports the claim")
	}
	if p.Renumbered() {
		t.Error("Recover repeats while nothing changes")
	}
	e.Sim.Change(func(s *engine.State) { s.DriverLoaded = true })
	if !p.Renumbered() {
		t.Error("the load of the driver is not noticed")
	}
	e.Recover(p)
	if spec(e, "a") == nil || p.Renumbered() {
		t.Error("the spec was not written again, or Recover repeats")
	}
	checkNumbers(e)
	e.CheckClean(p, "a")
}

// TestRecover_NVMLFails_KeepsConfirmedSpecs makes NVML fail as a whole, for one GPU, or hang: the kernel's numbers are the
// same, so that all specs stay.
func TestRecover_NVMLFails_KeepsConfirmedSpecs(t *testing.T) {
	for name, fail := range map[string]func(e *env){
		"all of NVML": func(e *env) { e.Sim.NVML.Answer(nvml.Timeout, func(int, nvmltest.Call) bool { return true }) },
		"one GPU":     func(e *env) { e.Sim.NVML.Answer(nvml.Unknown, nvmltest.On(e.Sim.State().GPUs[0].UUID)) },
		"one GPU hangs": func(e *env) {
			e.Sim.NVML.Hang(nvmltest.On(e.Sim.State().GPUs[0].UUID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			e.Configure = func(o *devicestate.Options) { o.WorkLimit = 200 * time.Millisecond }
			p := startConcurrent(e)
			for uid, device := range map[string]string{"a": "0 1g.10gb 4", "b": "1 1g.10gb 4", "c": "2"} {
				e.Claim(uid, device)
				e.Prepare(p, uid)
			}
			fail(e)
			t.Cleanup(func() { e.Sim.NVML.Clear() })
			_ = p.RecoverAll()
			for uid := range e.Claims {
				if spec(e, uid) == nil {
					t.Errorf("claim %s lost its spec. Reports: %v", uid, e.Reports)
				}
			}
			checkNumbers(e)
		})
	}
}

// startConcurrent starts a process that works on claims concurrently.
func startConcurrent(e *env) *process {
	p, err := e.StartWith(nil)
	e.Must(err)
	e.T.Cleanup(p.Crash)
	return p
}

// TestRecover_GPUHangs_SpecsStillFollowNumbers lets a check hang with the locks of its claim and GPU. No file of the kernel
// shows the change, so that only Recover compares the specs.
func TestRecover_GPUHangs_SpecsStillFollowNumbers(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	e.Configure = func(o *devicestate.Options) {
		o.WorkLimit, o.Kernel = 200*time.Millisecond, func() string { return "" }
	}
	p := startConcurrent(e)
	for uid, device := range map[string]string{"a": "0 1g.10gb 4", "b": "1", "c": "2"} {
		e.Claim(uid, device)
		e.Prepare(p, uid)
	}
	e.Sim.NVML.Hang(nvmltest.On(e.Sim.State().GPUs[0].UUID))
	t.Cleanup(func() { e.Sim.NVML.Clear() })
	if p.RecoverAll() == nil || spec(e, "a") == nil {
		t.Fatal("the check does not hang, or the confirmed spec was removed")
	}
	e.Sim.Change(func(s *engine.State) { s.GPUs[0].Minor, s.GPUs[1].Minor = 1, 0 })
	_ = p.RecoverAll()
	checkNumbers(e)
	if spec(e, "a") != nil || spec(e, "b") == nil || spec(e, "c") == nil {
		t.Errorf("specs: %v, %v, %v", spec(e, "a"), spec(e, "b"), spec(e, "c"))
	}
}

// TestRecover_TwoGPUsChangeNumbers_RemovesBeforeItWrites checks that at no moment two specs have one device node.
func TestRecover_TwoGPUsChangeNumbers_RemovesBeforeItWrites(t *testing.T) {
	e := devicestatetest.New(t)
	p := e.Start()
	e.Claim("a", "0")
	e.Claim("b", "1")
	e.Prepare(p, "a")
	e.Prepare(p, "b")
	p.Crash()
	f := hosttest.Trace()
	p, err := e.StartWith(f.Do)
	e.Must(err)
	t.Cleanup(p.Crash)
	e.Snapshot.GPUs[0].Minor, e.Snapshot.GPUs[1].Minor = 1, 0
	f.Arm()
	e.Recover(p)
	var order []host.Label
	for _, o := range f.Seen() {
		if o.Label == store.LabelRemove && o.Call == host.CallRemove || o.Label == store.LabelWrite && o.Call == host.CallRename {
			order = append(order, o.Label)
		}
	}
	if want := []host.Label{store.LabelRemove, store.LabelRemove, store.LabelWrite, store.LabelWrite}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
	e.CheckClean(p, "a", "b")
}

func TestPrepare_NumberOfAnotherClaim_RemovesItsSpecFirst(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.Sim.Change(kernelChanges["GPU 1 gets the number of GPU 0, which is gone"].do)
	e.Claim("b", "1")
	e.Prepare(p, "b")
	checkNumbers(e)
	if spec(e, "b") == nil {
		t.Error("the claim has no spec")
	}
}

func TestPrepare_NumberOfLostPartition_RemovesItsSpecFirst(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.Claim("a", "0 1g.10gb 4")
	e.Prepare(p, "a")
	e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], engine.AnyStart) })
	e.Claim("b", "0 1g.10gb 5")
	e.Prepare(p, "b")
	checkNumbers(e)
	if spec(e, "b") == nil || spec(e, "a") != nil {
		t.Errorf("specs: a %v, b %v", spec(e, "a"), spec(e, "b"))
	}
}

// TestRecover_NumberOfLostPartitionReused_RemovesSpec needs NVML: the kernel has all numbers of the spec.
func TestRecover_NumberOfLostPartitionReused_RemovesSpec(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.Claim("a", "0 1g.10gb 4")
	e.Prepare(p, "a")
	e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], engine.AnyStart) })
	e.Sim.Administrator(0, 19, 5, false)
	if p.RecoverAll() == nil || spec(e, "a") != nil {
		t.Error("the spec of the lost partition was kept, or no error reports the loss")
	}
	e.Unprepare(p, "a")
}

func TestVerify_PartitionLost_RemovesSpec(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.Claim("a", "0 1g.10gb 4")
	e.Prepare(p, "a")
	e.Sim.Change(func(s *engine.State) { s.Vanish(&s.GPUs[0], engine.AnyStart) })
	findings := p.Verify(t.Context(), []plan.Claim{devicestatetest.ClaimID("a")})
	if len(findings) != 1 || findings[0].Err == nil || spec(e, "a") != nil {
		t.Errorf("%+v, spec: %v", findings, spec(e, "a"))
	}
}

func TestPrepare_NumbersChangeMeanwhile_WritesTheNewOnes(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	calls := 0
	e.Configure = func(o *devicestate.Options) {
		kernel := o.Kernel
		o.Kernel = func() string {
			if calls++; calls == 3 {
				e.Sim.Change(func(s *engine.State) { s.GPUs[0].Minor, s.GPUs[1].Minor = s.GPUs[1].Minor, s.GPUs[0].Minor })
			}
			return kernel()
		}
	}
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	if calls <= 3 {
		t.Fatalf("the numbers were read %d times", calls)
	}
	checkNumbers(e)
	if spec(e, "a") == nil {
		t.Error("the claim has no spec")
	}
}

// TestPrepare_InstallFails_KeepsOtherSpecs has a full disk, so that the files of new specs cannot be installed. That says
// nothing about the devices of prepared claims.
func TestPrepare_InstallFails_KeepsOtherSpecs(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.Claim("a", "0")
	e.Prepare(p, "a")
	e.InstallErr = errors.New("install the hook: no space left on device")
	e.Claim("b", "1")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.HostFailure, "install the hook", "node's disk")
	_ = p.RecoverAll()
	e.CheckClean(p, "a")
	e.Sim.Change(kernelChanges["other numbers, and partitions stay"].do)
	_ = p.RecoverAll()
	checkNumbers(e)
	if spec(e, "a") != nil {
		t.Error("the outdated spec stays, because no new one can be written")
	}
	e.InstallErr = nil
	e.Recover(p)
	checkNumbers(e)
	e.CheckClean(p, "a")
}
