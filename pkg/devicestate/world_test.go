// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

const (
	driver = "gpu.nvidia.com"
	pool   = "node-1/gpu"
	// stepped is the label of a claim whose plan has steps, so that a crash can strand effects.
	stepped = "stepped"
)

// world is a machine: what outlives the plugin's process.
type world struct {
	t                    testing.TB
	dir, state, cdi, out string
	bootFile             string
	boots                int
	snapshot             gpu.Snapshot
	editsErr             error
	noForeign            bool
	now                  time.Time
	claims               map[string]*resourceapi.ResourceClaim
	reports              []error
	read                 func(string) ([]byte, error)
	disk                 *hosttest.Disk // nil unless the test cuts the power
}

// foreign is another driver's CDI spec; nothing may ever touch it.
const foreign, foreignText = "k8s.other.example.com-claim_11111111.json", `{"cdiVersion":"0.6.0"}`

func newWorld(t testing.TB) *world {
	t.Helper()
	root := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		root = "/dev/shm" // What is synced makes no difference to a process that dies, and the matrix has thousands.
	}
	dir, err := os.MkdirTemp(root, "devicestate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := attach(t, dir)
	w.must(os.MkdirAll(w.cdi, 0o755))
	w.must(os.MkdirAll(w.out, 0o755))
	w.must(os.WriteFile(filepath.Join(w.cdi, foreign), []byte(foreignText), 0o644))
	w.boots = 0
	w.newBoot()
	return w
}

// attach is a machine as a process finds it that did not make it.
func attach(t testing.TB, dir string) *world {
	w := &world{
		t: t, dir: dir, state: filepath.Join(dir, "plugin", "state"), cdi: filepath.Join(dir, "cdi"), out: filepath.Join(dir, "effects"),
		bootFile: filepath.Join(dir, "boot_id"), now: time.Unix(1_700_000_000, 0), claims: map[string]*resourceapi.ResourceClaim{},
	}
	w.snapshot.Driver.Version = "580.126.09"
	for i := range 4 {
		w.snapshot.GPUs = append(w.snapshot.GPUs, gpu.GPU{PCIAddress: address(i), UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: i,
			Interconnect: gpu.Interconnect{Links: []gpu.Link{{Version: 4, Peer: gpu.PeerSwitch}}}})
	}
	w.boots = 1
	return w
}

// again is the same machine, without what one test keeps of it in memory.
func (w *world) again() *world { return attach(w.t, w.dir) }

func address(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) newBoot() {
	w.boots++
	w.must(os.WriteFile(w.bootFile, []byte(fmt.Sprintf("boot-%d\n", w.boots)), 0o644))
}

// reboot ends the boot: the effects die with it, and on most machines the CDI directory.
func (w *world) reboot(keepCDI bool) {
	w.newBoot()
	w.empty(w.out, "")
	if !keepCDI {
		w.empty(w.cdi, foreign)
	}
}

// loseEffects undoes a claim's effects, as if they had never been.
func (w *world) loseEffects(uid string) {
	files, err := filepath.Glob(filepath.Join(w.out, uid+"-*"))
	w.must(err)
	for _, f := range files {
		w.must(os.Remove(f))
	}
}

// loseCDI deletes the CDI directory, other drivers' specs and all.
func (w *world) loseCDI() {
	w.must(os.RemoveAll(w.cdi))
	w.noForeign = true
}

func (w *world) empty(dir, except string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != except {
			w.must(os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
}

// process is one run of the plugin.
type process struct {
	*devicestate.Engine
	host *host.Host
}

// start begins a process; the hook may be nil.
func (w *world) start(hook host.FaultHook) (process, error) {
	if w.disk != nil {
		hook = w.disk.Hook(hook)
	}
	h := host.New(host.Options{BootIDFile: w.bootFile, Now: func() time.Time { w.now = w.now.Add(time.Microsecond); return w.now }, FaultHook: hook, ReadFile: w.read})
	e, err := devicestate.Open(devicestate.Options{
		Host: h, Dir: w.state, Specs: store.New(h, w.cdi, driver), Driver: driver, Pool: pool,
		Snapshot: func() gpu.Snapshot { return w.snapshot }, Edits: edits{w}, Planner: w.plan,
		Executors: map[string]devicestate.Executor{"file": fileExecutor{h, w.out}},
		InTurn:    true,
		Report:    func(err error) { w.reports = append(w.reports, err) },
	})
	return process{e, h}, err
}

func (w *world) run() process {
	w.t.Helper()
	p, err := w.start(nil)
	w.must(err)
	w.t.Cleanup(p.host.Close)
	return p
}

// plan is plan.Make with two steps for each GPU of a stepped claim.
func (w *world) plan(c *resourceapi.ResourceClaim, node plan.Node) (plan.Plan, error) {
	p, err := plan.Make(c, node)
	if err != nil || c.Labels[stepped] == "" {
		return p, err
	}
	for _, a := range p.Exclusive() {
		for _, part := range []string{"a", "b"} {
			spec, _ := json.Marshal(c.Labels[stepped] + "-" + strings.ReplaceAll(a, ":", "-") + "-" + part)
			p.Steps = append(p.Steps, plan.Step{Executor: "file", PCIAddress: a, Spec: spec})
		}
	}
	return p, nil
}

// fileExecutor's effects are files.
type fileExecutor struct {
	host *host.Host
	dir  string
}

func (x fileExecutor) path(step plan.Step) string {
	var name string
	_ = json.Unmarshal(step.Spec, &name)
	return filepath.Join(x.dir, name)
}

func (fileExecutor) Admit(context.Context, plan.Work) error { return nil }

func (x fileExecutor) Check(_ context.Context, w plan.Work) error {
	_, err := x.host.ReadFile(x.path(w.Step))
	return err
}

func (x fileExecutor) Apply(_ context.Context, w plan.Work) error {
	if _, err := x.host.ReadFile(x.path(w.Step)); err == nil {
		return nil
	}
	return x.host.WriteDurable("test.apply", x.path(w.Step), []byte("effect"), 0o600)
}

func (x fileExecutor) Revert(_ context.Context, w plan.Work) error {
	return errors.Join(x.host.Remove("test.revert", x.path(w.Step)), x.host.RemoveUnfinished("test.revert", x.path(w.Step)))
}

type edits struct{ w *world }

func (e edits) Common(context.Context) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{Env: []string{"NVIDIA_VISIBLE_DEVICES=void"}}, e.w.editsErr
}

func (e edits) GPU(_ context.Context, d plan.Device) (specs.ContainerEdits, error) {
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: fmt.Sprintf("/dev/nvidia%d", d.Minor), Type: "c", Major: 195, Minor: int64(d.Minor)}}}, nil
}

// claim makes an allocated claim of some GPUs; a negative number is the monitor of GPU -n-1.
func (w *world) claim(uid string, gpus ...int) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim-" + uid, UID: types.UID(uid)}}
	allocate(c, gpus...)
	w.claims[uid] = c
	return c
}

func (w *world) steppedClaim(uid string, gpus ...int) *resourceapi.ResourceClaim {
	c := w.claim(uid, gpus...)
	c.Labels = map[string]string{stepped: uid}
	return c
}

// groupClaim makes an allocated claim of a group of GPUs, whose containers are told how they are wired.
func (w *world) groupClaim(uid string, first, size int) *resourceapi.ResourceClaim {
	c := w.claim(uid, first)
	c.Status.Allocation.Devices.Results[0].Device = gpu.Device{Kind: gpu.KindGroup, Size: size, PCIAddress: address(first)}.Name()
	c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
		Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{"r0"},
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","topology":{"cudaVisibleDevices":true,"ncclTopology":true}}`),
		}}},
	}}
	return c
}

func (w *world) topologyFile(uid string) string {
	return filepath.Join(w.cdi, "k8s."+driver+"-claim_"+uid+".nccl.xml")
}

func allocate(c *resourceapi.ResourceClaim, gpus ...int) {
	a := &resourceapi.AllocationResult{}
	for i, n := range gpus {
		r := resourceapi.DeviceRequestAllocationResult{Request: fmt.Sprintf("r%d", i), Driver: driver, Pool: pool}
		if n < 0 {
			admin := true
			r.AdminAccess = &admin
			r.Device = gpu.Device{Kind: gpu.KindMonitor, PCIAddress: address(-n - 1)}.Name()
		} else {
			r.Device = gpu.Device{Kind: gpu.KindGPU, PCIAddress: address(n)}.Name()
		}
		a.Devices.Results = append(a.Devices.Results, r)
	}
	c.Status.Allocation = a
}

func claimOf(uid string) plan.Claim {
	return plan.Claim{Namespace: "default", Name: "claim-" + uid, UID: uid}
}

// files lists what lies below a directory, by relative path.
func (w *world) files(dir string) []string {
	var out []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			out = append(out, rel)
		}
		return err
	})
	if !errors.Is(err, fs.ErrNotExist) {
		w.must(err)
	}
	return out
}

// leftovers is what a node without claims must not have; quarantine and lock files are meant to stay.
func (w *world) leftovers() []string {
	left := w.files(w.out)
	for _, f := range w.files(w.state) {
		if !strings.HasPrefix(f, "locks/") && !strings.HasPrefix(f, "records/quarantine/") || strings.HasSuffix(f, ".tmp") {
			left = append(left, f)
		}
	}
	for _, f := range w.files(w.cdi) {
		if f != foreign {
			left = append(left, f)
		}
	}
	return left
}

// temps are the unfinished files anywhere.
func (w *world) temps() []string {
	return slices.DeleteFunc(w.files(w.dir), func(f string) bool { return !strings.HasSuffix(f, ".tmp") })
}

// faults lists what is wrong with a machine on which exactly the given claims are prepared.
func (w *world) faults(p process, prepared ...string) []string {
	var out []string
	if err := p.Check(); err != nil {
		out = append(out, strings.Split(err.Error(), "\n")...)
	}
	if got, err := os.ReadFile(filepath.Join(w.cdi, foreign)); !w.noForeign && (err != nil || string(got) != foreignText) {
		out = append(out, fmt.Sprintf("another driver's spec was touched: %q, %v", got, err))
	}
	for _, f := range w.temps() {
		out = append(out, "unfinished file "+f)
	}
	plans, blind, err := p.Held()
	if err != nil || blind {
		out = append(out, fmt.Sprintf("held: blind %v, %v", blind, err))
	}
	effects, uids := []string{}, []string{}
	for _, held := range plans {
		uids = append(uids, held.Claim.UID)
		if !w.alive(held.Claim.UID) {
			continue // Its effects died with their boot.
		}
		for _, s := range held.Steps {
			effects = append(effects, filepath.Base(fileExecutor{nil, ""}.path(s)))
		}
	}
	slices.Sort(prepared)
	if !slices.Equal(uids, prepared) {
		out = append(out, fmt.Sprintf("records of %v, want %v", uids, prepared))
	}
	slices.Sort(effects)
	if got := w.files(w.out); !slices.Equal(got, effects) {
		out = append(out, fmt.Sprintf("effects %v, want %v", got, effects))
	}
	if len(prepared) == 0 {
		for _, f := range w.leftovers() {
			out = append(out, "left over: "+f)
		}
	}
	return out
}

// alive says whether a claim's record is of this boot.
func (w *world) alive(uid string) bool {
	data, err := os.ReadFile(w.recordFile(uid))
	w.must(err)
	r, err := record.Decode(data, uid)
	w.must(err)
	return r.BootID == fmt.Sprintf("boot-%d", w.boots)
}

func (w *world) clean(p process, prepared ...string) {
	w.t.Helper()
	if faults := w.faults(p, prepared...); len(faults) > 0 {
		w.t.Fatalf("with %v prepared:\n  %s", prepared, strings.Join(faults, "\n  "))
	}
}

func (w *world) prepare(p process, uid string) {
	w.t.Helper()
	devices, err := p.Prepare(context.Background(), w.claims[uid])
	w.must(err)
	if len(devices) == 0 {
		w.t.Fatalf("Prepare of %s gave no device", uid)
	}
}

func (w *world) recordFile(uid string) string {
	return filepath.Join(w.state, "records", "claims", uid+".json")
}
func (w *world) specFile(uid string) string {
	return filepath.Join(w.cdi, "k8s."+driver+"-claim_"+uid+".json")
}

// damage makes a record unreadable.
func (w *world) damage(uid string) {
	w.t.Helper()
	data, err := os.ReadFile(w.recordFile(uid))
	w.must(err)
	data[len(data)/2] ^= 1
	w.must(os.WriteFile(w.recordFile(uid), data, 0o600))
}
