// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugintest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/internal/testing/kubelettest"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/wire/schedulerfault"
	simroot "gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/simtest"
)

// plugin is the part of an Env that Start sets.
type plugin struct {
	// Dir holds the plugin's directories, p (data), r (registrar) and c (CDI specs), and the socket of the kubelet's
	// pod-resources API.
	Dir     string
	Machine *simtest.DriverRoot
	Host    *host.Host
	Kubelet *kubelettest.Kubelet
	// instance is the process that Enlist made an instance, newer that of SetNewest.
	instance, newer *host.Host
	instances       string // Their file.
	// Edit, if set, is called before the driver root returns a device's container edits.
	Edit func(context.Context, plan.Device) error

	// Kernel is passed to devicestate.Options, and Tick to inventory.Options; nil means none, and short ticks.
	Kernel func() string
	Tick   func(time.Duration) (<-chan time.Time, func())

	// Rebound is passed to kubeletplugin.Options by the plugin that runs. The kernel has no events of
	// simulated GPUs.
	Rebound notify.Trigger

	// DriverVersion is for the machine that Start makes; empty means the profile's.
	DriverVersion string

	// SchedulerVersion is the plugin's setting; the zero Version means none.
	SchedulerVersion schedulerfault.Version

	// HealthPort is the TCP port of the health service, negative for none.
	HealthPort int

	// PodUID is the plugin's setting; empty for a single instance.
	PodUID string

	stop func() error
}

// Enlist makes a process an instance of the plugin: the newest one, unless SetNewest has started another.
func (e *Env) Enlist() *host.Instance {
	e.Helper()
	var i *host.Instance
	e.instance, i = e.enlist()
	if e.newer != nil {
		e.SetNewest(false)
	}
	return i
}

func (e *Env) enlist() (*host.Host, *host.Instance) {
	e.Helper()
	if e.instances == "" {
		e.instances = filepath.Join(e.TempDir(), "instances")
	}
	h := host.New(host.Options{})
	e.Cleanup(h.Close)
	i, err := h.Enlist(e.Context(), e.instances)
	if err != nil {
		e.Fatal(err)
	}
	return h, i
}

// SetNewest ends or starts an instance that is newer than that of Enlist.
func (e *Env) SetNewest(newest bool) {
	e.Helper()
	if e.newer != nil {
		e.newer.Close()
		e.newer = nil
	}
	if !newest {
		e.newer, _ = e.enlist()
	}
}

// EndInstance ends the process of Enlist, whose Instance then returns an error.
func (e *Env) EndInstance() { e.instance.Close() }

// Build creates a plugin on the Env's Machine and Host, whose engine keeps its state in StateDir.
type Build func(e *Env) (run func(context.Context) error)

// Make makes the machine, if there is none.
func (e *Env) Make() {
	e.Helper()
	if e.Machine == nil {
		dir, err := os.MkdirTemp("", "kp") // A socket's path must be short.
		if err != nil {
			e.Fatal(err)
		}
		e.Cleanup(func() { _ = os.RemoveAll(dir) })
		stop, err := kubelettest.ServePodResources(dir)
		if err != nil {
			e.Fatal(err)
		}
		e.Cleanup(stop)
		e.Dir, e.Machine = dir, simtest.Root(e.T, "hgx-h100", func(o *simroot.Options) {
			o.DriverVersion = e.DriverVersion
		})
		for _, d := range []string{e.DataDir(), e.RegistrarDir()} {
			if err := os.MkdirAll(d, 0o750); err != nil {
				e.Fatal(err)
			}
		}
	}
}

// Start starts a plugin, on the existing machine if there is one, and registers it with the kubelet.
func (e *Env) Start(build Build) {
	e.Helper()
	e.Make()
	e.Host = host.New(host.Options{BootIDFile: e.Machine.BootIDFile})
	run := build(e)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stopped := false
	e.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		if e.Kubelet != nil {
			e.Kubelet.Close()
		}
		select {
		case err := <-ended:
			e.Host.Close()
			return err
		case <-time.After(15 * time.Second):
			return errors.New("the plugin does not end")
		}
	}
	e.Cleanup(e.Stop)
	wait, cancelWait := context.WithTimeout(e.Context(), 20*time.Second)
	defer cancelWait()
	var err error
	if e.Kubelet, err = kubelettest.Register(wait, e.RegistrarDir()); err != nil {
		e.Fatal(err)
	}
}

func (e *Env) Stop() {
	e.Helper()
	if err := e.stop(); err != nil {
		e.Error(err)
	}
}

func (e *Env) DataDir() string      { return filepath.Join(e.Dir, "p") }
func (e *Env) StateDir() string     { return filepath.Join(e.Dir, "p", "state") }
func (e *Env) RegistrarDir() string { return filepath.Join(e.Dir, "r") }
func (e *Env) CDIDir() string       { return filepath.Join(e.Dir, "c") }

// AddClaim adds a claim with one device to the API server.
func (e *Env) AddClaim(uid, device, parameters string) *drapb.Claim {
	e.Helper()
	if err := e.Client.Tracker().Add(Claim(uid, device, parameters)); err != nil {
		e.Fatal(err)
	}
	return KubeletClaim(uid)
}

func KubeletClaim(uid string) *drapb.Claim {
	return &drapb.Claim{Namespace: "ns", Name: "claim-" + uid, Uid: uid}
}

// Prepare calls the plugin as the kubelet does. It returns the error of each claim by UID, or "".
func (e *Env) Prepare(claims ...*drapb.Claim) map[string]string {
	e.Helper()
	answers, err := e.Kubelet.Prepare(e.Context(), claims...)
	if err != nil {
		e.Fatal(err)
	}
	out := map[string]string{}
	for uid, a := range answers {
		out[uid] = a.Error
	}
	return out
}

// Unprepare calls the plugin as the kubelet does. It fails the test if a claim has an error.
func (e *Env) Unprepare(claims ...*drapb.Claim) {
	e.Helper()
	answers, err := e.Kubelet.Unprepare(e.Context(), claims...)
	if err != nil {
		e.Fatal(err)
	}
	for uid, a := range answers {
		if a.Error != "" {
			e.Fatalf("unprepare %s: %s", uid, a.Error)
		}
	}
}

// Specs returns the names of the CDI specs.
func (e *Env) Specs() (names []string) {
	entries, err := os.ReadDir(e.CDIDir())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		e.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// CheckClean fails the test if there are leaked, lost or doubly held devices.
func (e *Env) CheckClean() {
	e.Helper()
	records, err := devicestatetest.OpenRecords(e.Host, e.StateDir(),
		store.New(e.Host, e.CDIDir(), filepath.Join(e.StateDir(), "mounted"), Driver))
	if err == nil {
		err = records.Check()
	}
	if err != nil {
		e.Error(err)
	}
}

// Install implements devicestate.Edits.
func (*Env) Install(context.Context) error { return nil }

// Common implements devicestate.Edits.
func (e *Env) Common(ctx context.Context) (specs.ContainerEdits, error) { return e.root().Common(ctx) }

// GPU implements devicestate.Edits.
func (e *Env) GPU(ctx context.Context, d plan.Device) (specs.ContainerEdits, error) {
	if e.Edit != nil {
		if err := e.Edit(ctx, d); err != nil {
			return specs.ContainerEdits{}, err
		}
	}
	return e.root().GPU(ctx, driverroot.Device{Name: d.Name, PCIAddress: d.PCIAddress, UUID: d.UUID, Minor: d.Minor})
}

func (e *Env) root() *driverroot.Root {
	return driverroot.New(driverroot.Options{
		DriverRoot:     e.Machine.Path,
		HostDriverRoot: e.Machine.Path,
		DevRoot:        e.Machine.Path,
		HostDevRoot:    e.Machine.Path,
		ProcRoot:       e.Machine.ProcRoot,
		HookPath:       "/hook",
	})
}
