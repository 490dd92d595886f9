// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestatetest

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
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/host/hosttest"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/timeslice"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/mig"
)

// The driver and the node's pool.
const (
	Driver = "gpu.nvidia.com"
	Pool   = "node-1/gpu"
	// MonitorPool is the pool of monitor devices.
	MonitorPool = "node-1/monitor"
)

// External and ExternalText are another driver's CDI spec, which the driver must not touch.
const External, ExternalText = "k8s.other.example.com-claim_11111111.json", `{"cdiVersion":"0.6.0"}`

// Env is a machine with all state that outlives a plugin process.
type Env struct {
	T testing.TB
	// Dir is the root; StateDir and CDI are the engine's, and StepFiles holds a file for each step of stepped claims.
	Dir, StateDir, CDI, StepFiles, BootFile string
	// Boots is the number of the current boot.
	Boots  int
	Claims map[string]*resourceapi.ResourceClaim
	// Snapshot is the Snapshot of a machine without simulator.
	Snapshot gpu.Snapshot
	Sim      *Simulator
	// EditsErr and InstallErr are errors of devicestate.Edits.
	EditsErr, InstallErr error
	Now                  time.Time
	Reports              []error
	// ReadFile, Disk and Configure apply to processes that start later; each may be nil.
	ReadFile  func(string) ([]byte, error)
	Disk      *hosttest.Disk
	Configure func(*devicestate.Options)

	noExternal bool
	// clockStands means that only the start of a process advances Now, so that equal states have equal times.
	clockStands bool
}

// New creates a machine with four GPUs.
func New(t testing.TB) *Env {
	t.Helper()
	// The tests run in a box, whose temporary files are in memory: a crashed process needs no sync, and the crash
	// matrix has thousands.
	dir, err := os.MkdirTemp("", "devicestate-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := Attach(t, dir)
	e.Must(os.MkdirAll(e.CDI, 0o755))
	e.Must(os.MkdirAll(e.StepFiles, 0o755))
	e.Must(os.WriteFile(filepath.Join(e.CDI, External), []byte(ExternalText), 0o644))
	e.Boots = 0
	e.NewBoot()
	return e
}

// Attach returns a machine that another process or Env created.
func Attach(t testing.TB, dir string) *Env {
	e := &Env{
		T: t, Dir: dir, StateDir: filepath.Join(dir, "plugin", "state"), CDI: filepath.Join(dir, "cdi"),
		StepFiles: filepath.Join(dir, "steps"), BootFile: filepath.Join(dir, "boot_id"), Boots: 1,
		Now: time.Unix(1_700_000_000, 0), Claims: map[string]*resourceapi.ResourceClaim{},
	}
	e.Snapshot.Driver.Version = "580.126.09"
	for i := range 4 {
		e.Snapshot.GPUs = append(e.Snapshot.GPUs, gpu.GPU{
			PCIAddress:   Address(i),
			UUID:         fmt.Sprintf("GPU-%d", i),
			Index:        i,
			Minor:        i,
			Interconnect: gpu.Interconnect{Links: []gpu.Link{{Version: 4, Peer: gpu.PeerSwitch}}},
		})
	}
	return e
}

// Address returns the address of a GPU without simulator.
func Address(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

func (e *Env) Must(err error) {
	e.T.Helper()
	if err != nil {
		e.T.Fatal(err)
	}
}

// NewBoot changes the boot ID.
func (e *Env) NewBoot() {
	e.Boots++
	e.Must(os.WriteFile(e.BootFile, fmt.Appendf(nil, "boot-%d\n", e.Boots), 0o644))
}

// Reboot ends the boot, with the effects of steps and, on most machines, the CDI specs.
func (e *Env) Reboot(keepCDI bool) {
	e.NewBoot()
	e.Empty(e.StepFiles, "")
	if !keepCDI {
		e.Empty(e.CDI, External)
	}
	if e.Sim != nil {
		e.Sim.reboot()
	}
}

// LoseSteps removes the effects of a claim's steps.
func (e *Env) LoseSteps(uid string) {
	files, err := filepath.Glob(filepath.Join(e.StepFiles, uid+"-*"))
	e.Must(err)
	for _, f := range files {
		e.Must(os.Remove(f))
	}
}

// LoseCDI deletes the CDI directory, including other drivers' specs.
func (e *Env) LoseCDI() {
	e.Must(os.RemoveAll(e.CDI))
	e.noExternal = true
}

// Empty deletes the content of a directory except for one entry.
func (e *Env) Empty(dir, except string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.T.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != except {
			e.Must(os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
}

// Damage makes a claim's record unreadable.
func (e *Env) Damage(uid string) {
	e.T.Helper()
	data, err := os.ReadFile(e.RecordFile(uid))
	e.Must(err)
	data[len(data)/2] ^= 1
	e.Must(os.WriteFile(e.RecordFile(uid), data, 0o600))
}

// RecordFile returns the path of a claim's record.
func (e *Env) RecordFile(uid string) string {
	return filepath.Join(e.StateDir, "records", "claims", uid+".json")
}

// Mounted returns the directory of files that CDI specs mount.
func (e *Env) Mounted() string { return filepath.Join(e.StateDir, "mounted") }

// SpecFile returns the path of a claim's CDI spec.
func (e *Env) SpecFile(uid string) string {
	return filepath.Join(e.CDI, "k8s."+Driver+"-claim_"+uid+".json")
}

// TopologyFile returns the path of a group claim's file for NCCL.
func (e *Env) TopologyFile(uid string) string {
	return filepath.Join(e.Mounted(), "k8s."+Driver+"-claim_"+uid+".nccl.xml")
}

// MetadataFile returns the path of the metadata file of a claim's i-th request.
func (e *Env) MetadataFile(uid string, i int) string {
	return filepath.Join(e.Mounted(), fmt.Sprintf("k8s.%s-claim_%s.metadata-%d", Driver, uid, i))
}

// Scans is a gpu.Scans that scans anew each time.
type Scans func() gpu.Snapshot

func (s Scans) Snapshot() gpu.Snapshot { return s() }

// DevicePlugins are the resources of GPUs, by address. It implements plan.DevicePlugins.
type DevicePlugins map[string]string

func (d DevicePlugins) GPUs() (map[string]string, bool) { return d, d[UnknownDevicePlugins] == "" }

// UnknownDevicePlugins is a key of DevicePlugins while the kubelet has not answered.
const UnknownDevicePlugins = "unknown"

// Process is one run of the plugin.
type Process struct {
	*devicestate.Engine
	Records
	Host *host.Host
	// MIG is nil without simulator. Settings restores compute modes and time slices.
	MIG *mig.Executor
	// Library is the process's NVML.
	Library  nvml.Library
	Settings *executor.Settings
	shares   *mps.Executor
	slices   *timeslice.Executor
}

// reporting is held while a report is added, because processes work on claims concurrently.
var reporting sync.Mutex

// Start starts a process, which ends with the test at the latest.
func (e *Env) Start() *Process {
	e.T.Helper()
	p := e.start()
	e.T.Cleanup(p.Crash)
	return p
}

// start starts a process that the caller ends. The test does not keep its memory.
func (e *Env) start() *Process {
	e.T.Helper()
	p, err := e.StartWith(hosttest.Trace().Do)
	e.Must(err)
	return p
}

// StartWith starts a process with a hook on its operations. With a hook it works on GPUs one after the other.
func (e *Env) StartWith(hook host.FaultHook) (*Process, error) {
	if e.Disk != nil {
		hook = e.Disk.Hook(hook)
	}
	e.Now = e.Now.Add(time.Microsecond)
	now := func() time.Time {
		if !e.clockStands {
			e.Now = e.Now.Add(time.Microsecond)
		}
		return e.Now
	}
	h := host.New(host.Options{BootIDFile: e.BootFile, Now: now, FaultHook: hook, ReadFile: e.ReadFile})
	p := &Process{Host: h}
	o := devicestate.Options{
		Host:          h,
		Dir:           e.StateDir,
		Specs:         store.New(h, e.CDI, e.Mounted(), Driver),
		Driver:        Driver,
		Pool:          Pool,
		MonitorPool:   MonitorPool,
		Scans:         Scans(func() gpu.Snapshot { return e.Snapshot }),
		Edits:         edits{e},
		Kernel:        e.numbers,
		Planner:       planWithSteps,
		Executors:     map[string]devicestate.Executor{"file": fileExecutor{h, e.StepFiles}},
		DevicePlugins: DevicePlugins(nil),
		Sharing:       sharing.Node{},
		Reports: notifytest.Reporter(func(err error) {
			reporting.Lock()
			defer reporting.Unlock()
			e.Reports = append(e.Reports, err)
		}),
		Metadata: true,
	}
	err := e.simulate(&o, p, hook)
	if e.Configure != nil {
		e.Configure(&o)
	}
	if err == nil {
		p.Engine, err = devicestate.Open(o)
	}
	if err == nil && e.Sim != nil {
		p.Settings = executor.NewSettings(h, p, o.Scans, p.shares.Setting(), p.slices.Setting(), p.MIG.StuckSetting())
	}
	if err == nil {
		reader := host.New(host.Options{BootIDFile: e.BootFile, ReadFile: e.ReadFile})
		p.Records, err = OpenRecords(reader, e.StateDir, store.New(reader, e.CDI, e.Mounted(), Driver))
	}
	if err != nil {
		p.Crash()
		return nil, err
	}
	return p, nil
}

func (e *Env) simulate(o *devicestate.Options, p *Process, hook host.FaultHook) error {
	if e.Sim == nil {
		return nil
	}
	return e.Sim.configure(o, p, hook)
}

// Crash ends a process: the kernel releases its locks.
func (p *Process) Crash() {
	if p != nil {
		p.Host.Close()
	}
}

// RecoverAll recovers, and returns the errors of all findings.
func (p *Process) RecoverAll() error {
	findings, err := p.Recover(context.Background())
	return joined(findings, err)
}

// EndUnneeded ends MPS daemons that no claim needs, as the plugin does in the background.
func (p *Process) EndUnneeded(ctx context.Context) error {
	return mps.NewWatcher(p.shares, p.Engine, notifytest.Reporter(nil)).Scan(ctx)
}

// Prepare prepares a claim.
func (e *Env) Prepare(p *Process, uid string) []devicestate.PreparedDevice {
	e.T.Helper()
	devices, err := p.Prepare(context.Background(), e.Claims[uid])
	e.Must(err)
	if len(devices) == 0 {
		e.T.Fatalf("Prepare of %s returned no device", uid)
	}
	return devices
}

// Unprepare unprepares a claim.
func (e *Env) Unprepare(p *Process, uid string) {
	e.T.Helper()
	e.Must(p.Unprepare(context.Background(), ClaimID(uid)))
}

// Recover recovers all claims.
func (e *Env) Recover(p *Process) {
	e.T.Helper()
	e.Must(p.RecoverAll())
}

func (e *Env) Identify(p *Process) error {
	findings, err := p.Identify(context.Background(), &APIServer{Env: e})
	return joined(findings, err)
}

func joined(findings []devicestate.Finding, err error) error {
	for _, f := range findings {
		err = errors.Join(err, f.Err)
	}
	return err
}

// APIServer returns the machine's claims, or is down.
type APIServer struct {
	*Env
	Down error
	// Cached replaces the answers of the server's cache, if it is not nil.
	Cached error
	// Gets and CachedGets count the calls.
	Gets, CachedGets int

	mu sync.Mutex
}

// GetCached implements devicestate.Claims.
func (s *APIServer) GetCached(_ context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	s.count(&s.CachedGets)
	if s.Cached != nil {
		return nil, s.Cached
	}
	return s.get(c)
}

// Get implements devicestate.Claims.
func (s *APIServer) Get(_ context.Context, c plan.Claim) (*resourceapi.ResourceClaim, error) {
	s.count(&s.Gets)
	return s.get(c)
}

// count counts a call. Processes work on claims concurrently.
func (s *APIServer) count(calls *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*calls++
}

func (s *APIServer) get(c plan.Claim) (*resourceapi.ResourceClaim, error) {
	if s.Down != nil {
		return nil, s.Down
	}
	if claim, ok := s.Claims[c.UID]; ok {
		return claim, nil
	}
	return nil, devicestate.ErrNoClaim
}

// planWithSteps is plan.Make with two steps for each GPU of a stepped claim.
func planWithSteps(c *resourceapi.ResourceClaim, node plan.Node) (plan.Plan, error) {
	p, err := plan.Make(c, node)
	if err != nil || c.Labels[Stepped] == "" {
		return p, err
	}
	for _, a := range p.HeldGPUs() {
		device := slices.IndexFunc(p.Devices, func(d plan.Device) bool { return d.PCIAddress == a && !d.Admin })
		for _, part := range []string{"a", "b"} {
			spec, _ := json.Marshal(c.Labels[Stepped] + "-" + strings.ReplaceAll(a, ":", "-") + "-" + part)
			p.Steps = append(p.Steps, plan.Step{Executor: "file", PCIAddress: a, Device: device, Spec: spec})
		}
	}
	return p, nil
}
