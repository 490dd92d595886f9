// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
)

// unreadable is a fault that makes files unreadable.
type unreadable struct {
	name  string
	begin func(t *testing.T, e *env, reads *badReads, files []string)
	// returns means that the files are readable again after some reads.
	returns bool
}

// badReads fails reads, by inode: a record can be renamed.
type badReads struct {
	files []fs.FileInfo
	// left is the number of failures, below zero for all reads.
	left int
}

func (b *badReads) read(path string) ([]byte, error) {
	is, err := os.Stat(path)
	bad := err == nil && slices.ContainsFunc(b.files, func(f fs.FileInfo) bool { return os.SameFile(f, is) })
	if bad && b.left != 0 {
		b.left--
		return nil, &os.PathError{Op: "read", Path: path, Err: syscall.EIO}
	}
	return os.ReadFile(path)
}

func rewritten(change func(data []byte) []byte) func(*testing.T, *env, *badReads, []string) {
	return func(_ *testing.T, e *env, _ *badReads, files []string) {
		for _, file := range files {
			data, err := os.ReadFile(file)
			e.Must(err)
			e.Must(os.WriteFile(file, change(data), 0o600))
		}
	}
}

func failing(times int) func(*testing.T, *env, *badReads, []string) {
	return func(_ *testing.T, e *env, reads *badReads, files []string) {
		for _, file := range files {
			info, err := os.Stat(file)
			e.Must(err)
			reads.files = append(reads.files, info)
		}
		reads.left = times
	}
}

const gone = "gone"

var unreadables = []unreadable{
	{"one read fails", failing(1), true},
	{"4 reads fail", failing(4), true},
	{"5 reads fail", failing(5), true},
	{"8 reads fail", failing(8), true},
	{"reads fail", failing(-1), true},
	{"short", rewritten(func(data []byte) []byte { return data[:len(data)/2] }), false},
	{"empty", rewritten(func([]byte) []byte { return nil }), false},
	{"noise", rewritten(func([]byte) []byte { return []byte("\x00\xff{]") }), false},
	// The last digit of a UUID, and of a claim's UID, is another valid one.
	{"bit rot", rewritten(func(data []byte) []byte {
		text := string(data)
		if at := strings.Index(text, `MIG-`); at >= 0 {
			return []byte(text[:at+4] + string(text[at+4]^1) + text[at+5:])
		}
		at := strings.LastIndexAny(text, "ab0123456789")
		return []byte(text[:at] + string(text[at]^2) + text[at+1:])
	}), false},
	{gone, func(_ *testing.T, e *env, _ *badReads, files []string) {
		for _, file := range files {
			e.Must(os.Remove(file))
		}
	}, false},
}

// unreadableFiles are the files of claim b on GPU 0.
var unreadableFiles = map[string]func(e *env) []string{
	"record":          func(e *env) []string { return []string{e.RecordFile("b")} },
	"CDI spec":        func(e *env) []string { return []string{e.SpecFile("b")} },
	"record and spec": func(e *env) []string { return []string{e.RecordFile("b"), e.SpecFile("b")} },
	"record without a spec": func(e *env) []string {
		e.Must(os.Remove(e.SpecFile("b")))
		return []string{e.RecordFile("b")}
	},
	"notes":            func(e *env) []string { return []string{notesFile(e)} },
	"record and notes": func(e *env) []string { return []string{e.RecordFile("b"), notesFile(e)} },
	"settings": func(e *env) []string {
		files, err := filepath.Glob(filepath.Join(e.StateDir, "gpus", "*", e.Address(0)+".json"))
		e.Must(err)
		return files
	},
}

func notesFile(e *env) string { return filepath.Join(e.StateDir, "locks", "gpu-"+e.Address(0)) }

const slicedMIG = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"TimeSlicing"}}`

// neighbours are two claims of one GPU; a third claim of the same kind fits beside them.
var neighbours = map[string]struct {
	parameters string
	devices    [3]string // of the claims a, b and c
	// adopts means that the driver takes external partitions.
	adopts bool
}{
	"shared partition":               {slicedMIG, [3]string{"0 1g.10gb 4", "0 1g.10gb 4", "0 1g.10gb 4"}, false},
	"shared partition by MPS":        {ofMIG, [3]string{"0 1g.10gb 4", "0 1g.10gb 4", "0 1g.10gb 4"}, false},
	"MPS":                            {byMPS, [3]string{"0", "0", "0"}, false},
	"time slice":                     {byLong, [3]string{"0", "0", "0"}, false},
	"two partitions":                 {"", [3]string{"0 1g.10gb 4", "0 1g.10gb 2", "0 1g.10gb 0"}, false},
	"two partitions that are taken":  {"", [3]string{"0 1g.10gb 4", "0 1g.10gb 2", "0 1g.10gb 0"}, true},
	"shared partition that is taken": {slicedMIG, [3]string{"0 1g.10gb 4", "0 1g.10gb 4", "0 1g.10gb 4"}, true},
}

// effects hold the state of the GPU that the containers of claim b need.
type effects struct {
	instance *engine.Instance
	daemon   *mpsd.Daemon
	mode     int
	slice    int
	mig      bool
}

// deviceOf returns the device of a claim.
func deviceOf(e *env, uid string) gpu.Device {
	device, err := gpu.ParseName(e.Claims[uid].Status.Allocation.Devices.Results[0].Device)
	e.Must(err)
	return device
}

func effectsOf(e *env, device gpu.Device) (out effects) {
	g := e.Sim.State().GPUs[0]
	out.mode, out.slice, out.mig = g.ComputeMode, g.TimeSlice, g.MIGEnabled
	for _, i := range g.Instances {
		if device.Kind == gpu.KindMIG && i.Start == device.Start {
			out.instance = &i
		}
	}
	if d, ok := e.Sim.Daemon(device.Name()); ok {
		out.daemon = &d
	}
	return out
}

// lost returns the effect that is not there any more, or "".
func (was effects) lost(now effects) string {
	switch {
	case was.instance != nil && (now.instance == nil || now.instance.Computes[0].UUID != was.instance.Computes[0].UUID):
		return "its partition"
	case was.daemon != nil && now.daemon == nil:
		return "its MPS daemon"
	case was.daemon != nil && *now.daemon.MemoryLimit < *was.daemon.MemoryLimit:
		return "the memory limit of its MPS daemon"
	case was.mode != now.mode:
		return "its compute mode"
	case was.slice != now.slice:
		return "its time slice"
	case was.mig && !now.mig:
		return "its MIG mode"
	}
	return ""
}

// operationsBeside work on claims of the GPU, b among them. They return the running process, and the error of a call that must
// succeed.
var operationsBeside = map[string]func(e *env, p *process) (*process, error){
	"unprepare": func(e *env, p *process) (*process, error) { return p, unprepares("a")(e, p) },
	"prepare again": func(e *env, p *process) (*process, error) {
		return p, prepares("a")(e, p)
	},
	"prepare a third claim": func(e *env, p *process) (*process, error) {
		_, err := p.Prepare(context.Background(), e.Claims["c"])
		if err != nil && claimerror.KindOf(err) == claimerror.Transient {
			err = nil
		}
		return p, err
	},
	"recover": func(_ *env, p *process) (*process, error) {
		_ = p.RecoverAll() // It reports what it cannot read.
		return p, nil
	},
	"restart and unprepare": func(e *env, p *process) (*process, error) {
		p.Crash()
		p = e.Start()
		_ = p.RecoverAll()
		return p, unprepares("a")(e, p)
	},
	"unprepare and restart": func(e *env, p *process) (*process, error) {
		err := unprepares("a")(e, p)
		p.Crash()
		p = e.Start()
		_ = p.RecoverAll()
		return p, err
	},
	"settings": func(_ *env, p *process) (*process, error) { return p, nil },
	"verify": func(e *env, p *process) (*process, error) {
		_ = p.Verify(context.Background(), []plan.Claim{planned(e, "a"), planned(e, "b")}) // It reports what it cannot check.
		return p, nil
	},
	"prepare it again": func(e *env, p *process) (*process, error) {
		_, err := p.Prepare(context.Background(), e.Claims["b"])
		if err != nil && claimerror.KindOf(err) == claimerror.Transient {
			err = nil
		}
		return p, err
	},
	unprepareIt: func(e *env, p *process) (*process, error) { return p, unprepares("b")(e, p) },
}

const unprepareIt = "unprepare it"

func planned(e *env, uid string) plan.Claim {
	c := e.Claims[uid]
	return plan.Claim{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID)}
}

// staying returns the claims whose effects an operation must leave, by the operation's name.
func staying(operation string) []string {
	switch {
	case operation == unprepareIt:
		return []string{"a"}
	case strings.Contains(operation, "unprepare"):
		return []string{"b"}
	}
	return []string{"a", "b"}
}

// background does the plugin's work beside the kubelet's calls.
func background(e *env, p *process) {
	e.Must(p.EndUnneeded(context.Background()))
	modes := executor.NewSettings(p.Host, p, devicestatetest.Scans(func() gpu.Snapshot { return gpu.Snapshot{GPUs: []gpu.GPU{e.Sim.GPU(0)}} }), p.MIG.Setting(time.Nanosecond))
	for range 3 {
		e.Must(errors.Join(p.Settings.Reconcile(context.Background())...))
		e.Must(errors.Join(modes.Reconcile(context.Background())...))
		e.Now = e.Now.Add(time.Hour)
	}
}

// TestCoTenantUnreadable_AnyOperation_KeepsItsEffects makes files of claim b unreadable, and works on the other claims of
// its GPU. Nothing that b's containers use may end. Once the disk works, or b has ended, nothing may be left.
func TestCoTenantUnreadable_AnyOperation_KeepsItsEffects(t *testing.T) {
	for kind, n := range neighbours {
		for file, files := range unreadableFiles {
			for _, fault := range unreadables {
				for name, operation := range operationsBeside {
					for _, ending := range []string{"its pod ends", "it is looked up"} {
						alone := strings.HasPrefix(file, "record ") && file != "record and notes" // Nothing else shows the plan.
						some := strings.HasSuffix(fault.name, "reads fail") && fault.name != "reads fail"
						if file != "record and spec" && ending == "it is looked up" || some && !alone ||
							file == "record without a spec" && (name != unprepareIt || !fault.returns) {
							continue
						}
						this := strings.Join([]string{kind, file, fault.name, name, ending}, ", ")
						if !seedtest.Chosen(this) {
							continue
						}
						t.Run(this, func(t *testing.T) {
							e := devicestatetest.NewSimulated(t, "hgx-h100")
							reads := &badReads{}
							e.ReadFile, e.Sim.MIG.AdoptExternal = reads.read, n.adopts
							p := e.Start()
							for i, uid := range []string{"a", "b", "c"} {
								if n.parameters == "" {
									e.Claim(uid, n.devices[i])
								} else {
									e.SharedClaim(uid, []int{2, 4, 1}[i], n.parameters, n.devices[i])
								}
							}
							e.Prepare(p, "a")
							e.Prepare(p, "b")
							was := map[string]effects{}
							for _, uid := range staying(name) {
								was[uid] = effectsOf(e, deviceOf(e, uid))
								if name == unprepareIt && was[uid].daemon != nil {
									was[uid].daemon.MemoryLimit = new(uint64(0)) // Its last large client may end.
								}
							}
							check := func(when string) {
								t.Helper()
								for uid, effects := range was {
									if lost := effects.lost(effectsOf(e, deviceOf(e, uid))); lost != "" {
										t.Fatalf("%s claim %s lost %s", when, uid, lost)
									}
								}
							}
							partition := effectsOf(e, deviceOf(e, "b")).instance
							fault.begin(t, e, reads, files(e))
							if file == "record and spec" && fault.name == gone {
								return // Nothing shows then that the claim exists.
							}
							p, err := operation(e, p)
							if err != nil {
								t.Error("the other claim is stuck:", err)
							}
							check("at once")
							background(e, p)
							check("in the background")
							reads.left = 0
							if ending == "it is looked up" {
								_ = p.RecoverAll()
								e.Must(e.Identify(p))
								_ = p.RecoverAll() // Only Prepare finds the UUID of a partition that an allocation names.
								check("when it was looked up")
							}
							for _, uid := range []string{"b", "c", "a"} {
								e.Unprepare(p, uid)
							}
							if fault.returns {
								e.Recover(p)
							} else if n.parameters == "" && file == "record and spec" && len(e.Sim.State().GPUs[0].Instances) > 0 {
								// Neither a file nor another claim shows any more whose partition it is, so it is external.
								e.Sim.External[partition.Computes[0].UUID] = true
								e.CheckClean(p)
								return
							}
							background(e, p)
							if file == "settings" && fault.name == gone {
								return // Nothing shows then that the driver changed the setting.
							}
							e.CheckClean(p)
							e.CheckRestored(p)
						})
					}
				}
			}
		}
	}
}

// TestUnprepare_RecordAndSpecOnBadSectors_PartitionKeepsAnOwner ends the pod of a claim while the disk reads none of its files.
// The partition is destroyed once it reads one of them again. It is given up after the claim's deletion only.
func TestUnprepare_RecordAndSpecOnBadSectors_PartitionKeepsAnOwner(t *testing.T) {
	for readable, files := range map[string][]string{"record": {"record"}, "spec": {"spec"}, "both": {"record", "spec"}, "none": nil} {
		t.Run(readable, func(t *testing.T) {
			e := h100(t)
			bad := map[string]*badReads{"record": {}, "spec": {}}
			e.ReadFile = func(path string) ([]byte, error) {
				for _, b := range bad {
					if _, err := b.read(path); errors.Is(err, syscall.EIO) {
						return nil, err
					}
				}
				return os.ReadFile(path)
			}
			p := e.Start()
			given(one, "a")(e, p)
			for file, path := range map[string]string{"record": e.RecordFile("a"), "spec": e.SpecFile("a")} {
				info, err := os.Stat(path)
				e.Must(err)
				bad[file].files, bad[file].left = []fs.FileInfo{info}, -1
			}
			for range 2 { // The kubelet repeats its call.
				e.Unprepare(p, "a")
				_ = p.RecoverAll()
				_ = e.Identify(p)
			}
			if _, incomplete, err := p.Held(); err != nil || !incomplete || len(e.Sim.State().GPUs[0].Instances) != 1 {
				t.Errorf("incomplete %v, %v; instances %+v", incomplete, err, e.Sim.State().GPUs[0].Instances)
			}
			if unknown, err := filepath.Glob(filepath.Join(e.StateDir, "records", "unknown", "*")); err != nil || len(unknown) != 1 {
				t.Errorf("records in the state unknown: %v, %v", unknown, err)
			}
			if len(e.Reports) != 1 || claimerror.ReasonOf(e.Reports[0]) != claimerror.RecordUnreadable {
				t.Errorf("reports %v", e.Reports)
			}
			delete(e.Claims, "a")
			e.Claim("b", "1")
			e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "UID a")
			for _, file := range files {
				bad[file].left = 0
			}
			_, _, err := p.Held() // The plugin lists the claims with each scan.
			e.Must(err)
			if readable != "none" && !p.Incomplete() {
				t.Error("no Recover would read the file")
			}
			_ = p.RecoverAll() // It reports the file that stays unreadable.
			if slices.Contains(files, "record") {
				e.CheckClean(p) // It shows that the release has begun.
			}
			deleted := devicestate.NewDeletedClaims(p.Engine, &devicestatetest.APIServer{Env: e}, unused{}, time.Minute)
			for range 2 {
				_, err := deleted.Release(t.Context())
				e.Must(err)
				e.Now = e.Now.Add(time.Hour)
			}
			if left := e.Sim.State().GPUs[0].Instances; readable == "none" && len(left) == 1 {
				devicestatetest.CheckError(t, e.Reports[1], claimerror.Transient, claimerror.RecordUnreadable, "is deleted", "nvidia-smi mig -dci")
				e.Sim.External[left[0].Computes[0].UUID] = true
			}
			e.CheckClean(p)
			e.Prepare(p, "b")
		})
	}
}

// TestUnprepare_CoTenantUnknownOnOneGPU_KeepsOnlyItsPartition has a claim with partitions of two GPUs, one of them shared.
func TestUnprepare_CoTenantUnknownOnOneGPU_KeepsOnlyItsPartition(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	e.SharedClaim("a", 2, slicedMIG, "0 1g.10gb 4", "1 1g.10gb 4")
	e.SharedClaim("b", 4, slicedMIG, "0 1g.10gb 4")
	e.Prepare(p, "a")
	e.Prepare(p, "b")
	e.Damage("b")
	e.Must(os.Remove(e.SpecFile("b")))
	for range 2 { // The kubelet repeats its call.
		e.Unprepare(p, "a")
	}
	if kept, destroyed := e.Sim.State().GPUs[0].Instances, e.Sim.State().GPUs[1].Instances; len(kept) != 1 || len(destroyed) != 0 {
		t.Fatalf("partitions %+v and %+v", kept, destroyed)
	}
	if len(e.Reports) != 1 || claimerror.ReasonOf(e.Reports[0]) != claimerror.RecordUnreadable || !p.Incomplete() {
		t.Errorf("reports %v, incomplete %v", e.Reports, p.Incomplete())
	}
	devicestatetest.CheckError(t, e.Reports[0], claimerror.Transient, claimerror.RecordUnreadable,
		"default/claim-a", "mig-1g-10gb-4", "claim UID b", "the plugin removes the partition")
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.RecordUnreadable, "claim UID b")
	e.Unprepare(p, "b")
	e.CheckClean(p)
	e.Recover(p)
	if p.Incomplete() {
		t.Error("nothing is kept any more, and it is incomplete")
	}
}

// TestPrepare_RebootAndCoTenantUnknown_DoesNotTakeItsPartition prepares a claim again whose partition a claim of unknown
// devices has created in this boot.
func TestPrepare_RebootAndCoTenantUnknown_DoesNotTakeItsPartition(t *testing.T) {
	for _, adopts := range []bool{false, true} {
		e := devicestatetest.NewSimulated(t, "hgx-h100")
		e.Sim.MIG.AdoptExternal = adopts
		p := e.Start()
		sharesOf(slicedMIG, []string{"0 1g.10gb 4"}, []string{"a", "b"}, "a", "b")(e, p)
		p.Crash()
		e.Reboot(false)
		p = e.Start()
		e.Prepare(p, "b")
		was := e.Sim.State().GPUs[0].Instances[0].Computes[0].UUID
		e.Damage("b")
		e.Must(os.Remove(e.SpecFile("b")))
		e.CheckRefused(p, "a", claimerror.Transient, claimerror.DeviceInUse, "claim UID b", "unreadable")
		if now := e.Sim.State().GPUs[0].Instances; len(now) != 1 || now[0].Computes[0].UUID != was {
			t.Fatalf("claim b had %s, and now there is %+v", was, now)
		}
		e.Unprepare(p, "b")
	}
}

// TestPrepare_RecordOfTimeSliceLost_RestoresDefault loses the only file with the value to restore.
func TestPrepare_RecordOfTimeSliceLost_RestoresDefault(t *testing.T) {
	for name, lose := range map[string]func(e *env, file string){
		"gone":    func(e *env, file string) { e.Must(os.Remove(file)) },
		"damaged": func(e *env, file string) { e.Must(os.WriteFile(file, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := devicestatetest.NewSimulated(t, "hgx-h100")
			p := e.Start()
			shares(byLong, "0", []string{"a", "b"}, "a")(e, p)
			lose(e, filepath.Join(e.StateDir, "gpus", "time-slice", e.Address(0)+".json"))
			e.Prepare(p, "b")
			e.CheckClean(p, "a", "b")
			e.Unprepare(p, "a")
			e.Unprepare(p, "b")
			e.CheckRestored(p)
		})
	}
}

// TestUnprepare_CoTenantRecordUnreadable_UsesSpec checks that a claim whose CDI spec is readable holds up no release.
func TestUnprepare_CoTenantRecordUnreadable_UsesSpec(t *testing.T) {
	e := devicestatetest.NewSimulated(t, "hgx-h100")
	p := e.Start()
	sharesOf(slicedMIG, []string{"0 1g.10gb 4"}, []string{"a", "b"}, "a", "b")(e, p)
	e.Damage("b")
	e.Unprepare(p, "a")
	e.Recover(p)
	e.CheckClean(p, "b")
	if len(e.Reports) != 1 || !strings.Contains(e.Reports[0].Error(), "claim-b") {
		t.Errorf("reports %v", e.Reports)
	}
	e.Unprepare(p, "b")
	e.CheckClean(p)
}
