// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/partition/mig"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
	"gpu-dra-driver/pkg/sharing"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/simtest"
)

const (
	driver = "gpu.nvidia.com"
	pool   = "n/gpu"
)

// rig is a machine with GPUs that can be cut: what outlives the plugin's process.
type rig struct {
	t       testing.TB
	dir     string
	machine *engine.Engine
	options mig.Options
	boots   int
	claims  map[string]*resourceapi.ResourceClaim
	// foreign are the UUIDs of partitions that an administrator made, foreignModes the GPUs whose mode was found on.
	foreign      map[string]bool
	foreignModes map[string]bool
	// daemons are the supervisor's, which outlives the plugin.
	daemons map[string]mpsd.Daemon
	// policy is the node's setting.
	policy sharing.Policy
	noMPS  string
}

func newRig(t testing.TB, profile string) *rig {
	t.Helper()
	root := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		root = "/dev/shm"
	}
	dir, err := os.MkdirTemp(root, "mig")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{
		t: t, dir: dir, machine: simtest.MachineIn(t, filepath.Join(dir, "machine"), profile), claims: map[string]*resourceapi.ResourceClaim{},
		foreign: map[string]bool{}, foreignModes: map[string]bool{}, daemons: map[string]mpsd.Daemon{},
	}
	r.must(os.MkdirAll(filepath.Join(dir, "cdi"), 0o755))
	r.newBoot()
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) newBoot() {
	r.boots++
	r.must(os.WriteFile(filepath.Join(r.dir, "boot"), fmt.Appendf(nil, "boot-%d\n", r.boots), 0o644))
}

// reboot ends the boot: instances go, on most boards the mode, and on most machines the CDI specs.
func (r *rig) reboot() {
	r.newBoot()
	r.change(func(s *engine.State) { s.Reboot() })
	r.must(os.RemoveAll(filepath.Join(r.dir, "cdi")))
	r.must(os.MkdirAll(filepath.Join(r.dir, "cdi"), 0o755))
	clear(r.foreign)
	clear(r.daemons)
	for _, g := range r.state().GPUs {
		r.foreignModes[g.Address] = r.foreignModes[g.Address] && g.MIGEnabled
	}
}

func (r *rig) state() *engine.State {
	s, err := r.machine.State()
	r.must(err)
	return s
}

func (r *rig) change(do func(*engine.State)) {
	r.t.Helper()
	r.must(r.machine.Update(func(s *engine.State) error { do(s); return nil }))
}

func (r *rig) address(n int) string { return r.state().GPUs[n].Address }

// administrator makes a partition outside of the driver; bare ones lack the compute instance.
func (r *rig) administrator(n int, profile, start int, bare bool) {
	r.change(func(s *engine.State) {
		g := &s.GPUs[n]
		if !g.MIGEnabled {
			if code := s.SetMIGMode(g, true); code != 0 {
				r.t.Fatal(code)
			}
			r.foreignModes[g.Address] = true
		}
		i, code := s.CreateInstance(g, profile, start)
		if code != 0 {
			r.t.Fatal(code)
		}
		uuid := fmt.Sprintf("bare %s %d", g.Address, i.Start)
		if !bare {
			p, _ := s.Profile.Board.MIG.Profile(profile)
			all := p.ComputeInstances()
			c, code := s.CreateCompute(g, i.ID, all[len(all)-1].ID)
			if code != 0 {
				r.t.Fatal(code)
			}
			uuid = c.UUID
		}
		r.foreign[uuid] = true
	})
}

// process is one run of the plugin.
type process struct {
	*devicestate.Engine
	host *host.Host
	mig  *mig.Executor
}

type edits struct{}

func (edits) Common(context.Context) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, nil
}

func (edits) GPU(_ context.Context, d plan.Device) (specs.ContainerEdits, error) {
	if d.Kind == gpu.KindMIG && d.Partition.UUID == "" {
		return specs.ContainerEdits{}, errors.New("the partition is not known")
	}
	node := specs.DeviceNode{Path: fmt.Sprintf("/dev/nvidia%d", d.Minor), Type: "c", Major: 195, Minor: int64(d.Minor)}
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{&node}, Env: []string{"PARTITION=" + d.Partition.UUID}}, nil
}

// start begins a process whose operations go through faults.
func (r *rig) start(f *hosttest.Faults) (process, error) {
	h := host.New(host.Options{BootIDFile: filepath.Join(r.dir, "boot"), FaultHook: f.Do})
	p := process{host: h}
	state := filepath.Join(r.dir, "state")
	modes, err := record.OpenGPUs(h, filepath.Join(state, "gpus"), mig.Setting)
	if err != nil {
		return p, err
	}
	o := r.options
	o.Host, o.Library, o.Modes, o.ProcRoot = h, nvmltest.WithFaults(nvmlfake.New(r.machine), f.Do), modes, r.dir
	if o.Patience == 0 {
		o.Patience = time.Nanosecond
	}
	p.mig = mig.New(o)
	executors, err := r.sharers(h, f, o.Library, filepath.Join(state, "gpus"))
	if err != nil {
		return p, err
	}
	executors[plan.MIGExecutor] = p.mig
	scanner := inventory.New(inventory.Options{Library: nvmlfake.New(r.machine), ProcRoot: r.dir, SysRoot: r.dir, DevRoot: r.dir})
	p.Engine, err = devicestate.Open(devicestate.Options{
		Host: h, Dir: state, Specs: store.New(h, filepath.Join(r.dir, "cdi"), driver), Driver: driver, Pool: pool, InTurn: true,
		Snapshot: func() gpu.Snapshot {
			s, err := scanner.Scan(context.Background())
			if err != nil && !errors.Is(err, inventory.ErrNoDriver) {
				r.t.Error(err)
			}
			return s
		},
		Edits: edits{}, Executors: executors, Whole: p.mig.Whole, MPSDir: "/mps",
		Policy: func(gpu.GPU, string) sharing.Policy { return r.policy }, NoMPS: r.noMPS,
	})
	return p, err
}

func (r *rig) run() process {
	r.t.Helper()
	p, err := r.start(hosttest.Trace())
	r.must(err)
	r.t.Cleanup(p.host.Close)
	return p
}

// claim makes an allocated claim; a device is "0" for GPU 0, "0 1g.10gb 4" for a partition of it.
func (r *rig) claim(uid string, devices ...string) {
	a := &resourceapi.AllocationResult{}
	for i, text := range devices {
		var n, start int
		d := gpu.Device{Kind: gpu.KindGPU}
		if _, err := fmt.Sscanf(text, "%d %s %d", &n, &d.Profile, &start); err == nil {
			d.Kind, d.Start = gpu.KindMIG, start
		}
		d.PCIAddress = r.address(n)
		a.Devices.Results = append(a.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: fmt.Sprintf("r%d", i), Driver: driver, Pool: pool, Device: d.Name(),
		})
	}
	r.claims[uid] = &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: a},
	}
}

func claimOf(uid string) plan.Claim { return plan.Claim{Namespace: "ns", Name: uid, UID: uid} }

func (r *rig) prepare(p process, uid string) {
	r.t.Helper()
	_, err := p.Prepare(context.Background(), r.claims[uid])
	r.must(err)
}

// recover lets Recover finish, and gives what it could not mend.
func (p process) recover() error {
	findings, err := p.Recover(context.Background())
	for _, f := range findings {
		err = errors.Join(err, f.Err)
	}
	return err
}

// faults lists what is wrong with a machine on which exactly these claims are prepared in this boot.
func (r *rig) faults(p process, prepared ...string) []string {
	var out []string
	wrong := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if err := p.Check(); err != nil {
		wrong("check: %v", err)
	}
	plans, blind, err := p.Held()
	if err != nil || blind {
		wrong("held: %v, blind %v", err, blind)
	}
	uids, owned := []string{}, map[string]string{}
	for _, held := range plans {
		uids = append(uids, held.Claim.UID)
		for _, d := range held.Devices {
			if d.Kind == gpu.KindMIG && !d.Partition.Foreign && slices.Contains(prepared, held.Claim.UID) {
				owned[fmt.Sprintf("%s %d", d.PCIAddress, d.Partition.Start)] = d.Partition.UUID
			}
		}
	}
	slices.Sort(prepared)
	if !slices.Equal(uids, prepared) {
		wrong("records of %v, want %v", uids, prepared)
	}
	foreign := maps.Clone(r.foreign)
	switched, err := p.mig.Switched()
	if err != nil {
		wrong("%v", err)
	}
	for _, g := range r.state().GPUs {
		for _, i := range g.Instances {
			at := fmt.Sprintf("%s %d", g.Address, i.Start)
			uuid := "bare " + at
			if len(i.Computes) == 1 {
				uuid = i.Computes[0].UUID
			}
			switch {
			case foreign[uuid]:
				delete(foreign, uuid)
			case owned[at] == uuid:
				delete(owned, at)
			default:
				wrong("leaked: %s, %s (%d compute instances)", at, uuid, len(i.Computes))
			}
		}
		if g.MIGEnabled && !r.foreignModes[g.Address] && !switched[g.Address] {
			wrong("the MIG mode of %s is on and nobody knows why", g.Address)
		}
		if !g.MIGEnabled && r.foreignModes[g.Address] {
			wrong("the MIG mode of %s was found on and is off", g.Address)
		}
		if g.MIGPending != g.MIGEnabled {
			wrong("the MIG mode of %s is pending", g.Address)
		}
	}
	out = append(out, r.unshared(plans, prepared)...)
	for at, uuid := range owned {
		wrong("lost: %s, %s", at, uuid)
	}
	for uuid := range foreign {
		wrong("foreign and gone: %s", uuid)
	}
	for _, dir := range []string{"cdi", "state/records/claims"} {
		entries, err := os.ReadDir(filepath.Join(r.dir, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			wrong("%v", err)
		}
		if len(entries) != len(prepared) {
			wrong("%d files in %s for %d claims: %v", len(entries), dir, len(prepared), entries)
		}
	}
	return out
}

func (r *rig) clean(p process, prepared ...string) {
	r.t.Helper()
	if faults := r.faults(p, prepared...); len(faults) > 0 {
		r.t.Fatalf("with %v prepared:\n  %s", prepared, strings.Join(faults, "\n  "))
	}
}

// damage makes a claim's record unreadable.
func (r *rig) damage(uid string) {
	path := filepath.Join(r.dir, "state/records/claims", uid+".json")
	data, err := os.ReadFile(path)
	r.must(err)
	data[len(data)/2] ^= 1
	r.must(os.WriteFile(path, data, 0o600))
}

// whole is a GPU as the inventory knows it.
func whole(g engine.GPU) gpu.GPU { return gpu.GPU{PCIAddress: g.Address, UUID: g.UUID, Minor: g.Minor} }
