// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/notify/notifytest"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/cdi"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/timeslice"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/partition/mig"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
)

// The directories of MPS daemons and of CDI specs, as the chart sets them.
const (
	mpsDir = "/var/lib/kubelet/plugins/" + driver + "/mps"
	cdiDir = "/var/run/cdi"
)

// node prepares claims on a board with the driver's own engine. Only MPS daemons, nvidia-smi and the driver's files are
// replaced: their effects are values in memory.
type node struct {
	board   *board
	dir     string // of records and CDI specs
	host    *host.Host
	engine  *devicestate.Engine
	mu      sync.Mutex
	daemons map[string]mpsd.Daemon
}

// prepared is the result of Prepare for a claim.
type prepared struct {
	plan plan.Plan
	spec specs.Spec
	err  error
}

func startNode(b *board, dir string) (*node, error) {
	boot := filepath.Join(dir, "boot_id")
	if err := os.WriteFile(boot, []byte("boot-1\n"), 0o600); err != nil {
		return nil, err
	}
	n := &node{board: b, dir: dir, host: host.New(host.Options{BootIDFile: boot}), daemons: map[string]mpsd.Daemon{}}
	settings := filepath.Join(dir, "gpus")
	modes, err := record.OpenGPUs(n.host, settings, mig.Setting)
	if err != nil {
		return nil, err
	}
	stuck, err := record.OpenGPUs(n.host, settings, mig.StuckSetting)
	if err != nil {
		return nil, err
	}
	computeModes, err := record.OpenGPUs(n.host, settings, mps.Setting)
	if err != nil {
		return nil, err
	}
	timeSlices, err := record.OpenGPUs(n.host, settings, timeslice.Setting)
	if err != nil {
		return nil, err
	}
	sessions := sessionpool.New(nvmlfake.New(b.machine), func(string) bool { return true }, notifytest.Reporter(nil))
	partitions := mig.New(n.host, sessions, modes, stuck, mig.Options{
		AllowReset: true, ProcRoot: dir, Timeout: time.Second, Switches: new(inventory.Switches), Scans: n,
	})
	shares := mps.New(n.host, sessions, n, computeModes, dir)
	n.engine, err = devicestate.Open(devicestate.Options{
		Host: n.host, Dir: filepath.Join(dir, "state"), Specs: store.New(n.host, n.cdiDir(), filepath.Join(dir, "mounted"), driver), Driver: driver,
		Pool: wire.PoolName(nodeName), MonitorPool: wire.MonitorPoolName(nodeName),
		Edits: n, Sharing: b.sharing, MPSDir: mpsDir,
		Scans: n,
		Executors: map[string]devicestate.Executor{
			plan.MIGExecutor:          partitions,
			sharing.MPSExecutor:       shares,
			sharing.TimeSliceExecutor: timeslice.New(timeSlice{n}, timeSlices),
		},
		Settle:        []func(context.Context, *plan.Device) error{partitions.Settle, shares.Settle},
		DevicePlugins: n,
		Reports:       notifytest.Reporter(nil),
	})
	return n, err
}

// Snapshot implements gpu.Scans.
func (n *node) Snapshot() gpu.Snapshot {
	s, _ := n.board.scan(context.Background()) // The first scan succeeded, and the simulated board does not fail.
	return s
}

// GPUs implements plan.DevicePlugins.
func (n *node) GPUs() (map[string]string, bool) { return nil, true }

func (n *node) cdiDir() string { return filepath.Join(n.dir, "cdi") }

// prepare prepares an allocated claim and reads back the plan that was carried out, and the CDI spec.
func (n *node) prepare(ctx context.Context, c *claim) {
	c.prepared = &prepared{}
	if _, c.prepared.err = n.engine.Prepare(ctx, c.ResourceClaim); c.prepared.err != nil {
		return
	}
	data, err := os.ReadFile(filepath.Join(n.cdiDir(), fmt.Sprintf("k8s.%s-%s_%s.json", driver, cdi.Class, c.UID)))
	data = bytes.ReplaceAll(data, []byte(n.cdiDir()), []byte(cdiDir))
	if err == nil {
		err = json.Unmarshal(data, &c.prepared.spec)
	}
	if err == nil {
		c.prepared.plan, _, err = cdi.PlanOf(driver, data)
	}
	c.prepared.err = err
}

func (n *node) unprepare(ctx context.Context, c *claim) error {
	return n.engine.Unprepare(ctx, plan.Claim{Namespace: c.Namespace, Name: c.Name, UID: string(c.UID)})
}

// nodes are the device nodes of the simulated driver by path.
func (n *node) nodes() (map[string]*specs.DeviceNode, error) {
	state, err := n.board.machine.State()
	if err != nil {
		return nil, err
	}
	entries, err := driverroot.Plan(state)
	if err != nil {
		return nil, err
	}
	out := map[string]*specs.DeviceNode{}
	for _, e := range entries {
		if e.Kind == driverroot.CharDevice {
			path := "/" + e.Path
			out[path] = &specs.DeviceNode{Path: path, Type: "c", Major: int64(e.Major), Minor: int64(e.Minor), Permissions: "rw"}
		}
	}
	return out, nil
}

// pick gives the edits with some of the driver's device nodes.
func (n *node) pick(paths ...string) (edits specs.ContainerEdits, err error) {
	have, err := n.nodes()
	if err != nil {
		return edits, err
	}
	for _, path := range paths {
		d, ok := have[path]
		if !ok {
			return edits, fmt.Errorf("the simulated driver has no %s", path)
		}
		edits.DeviceNodes = append(edits.DeviceNodes, d)
	}
	return edits, nil
}

func (n *node) Install(context.Context) error { return nil }

// Common leaves out libraries and hooks, which need a driver's files.
func (n *node) Common(context.Context) (specs.ContainerEdits, error) {
	edits, err := n.pick("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
	edits.Env = []string{"NVIDIA_VISIBLE_DEVICES=void"}
	return edits, err
}

// GPU implements devicestate.Edits.
func (n *node) GPU(_ context.Context, d plan.Device) (specs.ContainerEdits, error) {
	paths := []string{fmt.Sprintf("/dev/nvidia%d", d.Minor)}
	switch {
	case d.Kind == gpu.KindMIG && !d.Admin:
		p := d.Partition
		for _, minor := range []uint32{engine.InstanceMinor(d.Minor, p.GPUInstance), engine.ComputeMinor(d.Minor, p.GPUInstance, p.ComputeInstance)} {
			paths = append(paths, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
		}
	case d.Kind == gpu.KindGroup:
		have, err := n.nodes()
		if err != nil {
			return specs.ContainerEdits{}, err
		}
		var switches []string
		for path := range have {
			if strings.HasPrefix(path, "/dev/nvidia-nvswitch") {
				switches = append(switches, path)
			}
		}
		slices.Sort(switches)
		paths = append(paths, switches...)
	}
	return n.pick(paths...)
}

// Ensure implements mps.Daemons.
func (n *node) Ensure(_ context.Context, d mpsd.Daemon) (mpsd.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.daemons[d.Name] = d
	return mpsd.Status{Daemon: d, PID: 1}, d.Validate()
}

// Stop implements mps.Daemons.
func (n *node) Stop(_ context.Context, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.daemons, name)
	return nil
}

// List implements mps.Daemons.
func (n *node) List(context.Context, string) (l mpsd.List, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range n.daemons {
		l.Daemons = append(l.Daemons, mpsd.Status{Daemon: d, PID: 1})
	}
	return l, nil
}

// timeSlice is nvidia-smi's way to time slices.
type timeSlice struct{ *node }

var errNoGPU = errors.New("no such GPU")

func (t timeSlice) Get(_ context.Context, uuid string) (interval int, err error) {
	return interval, t.change(uuid, func(g *engine.GPU) { interval = g.TimeSlice })
}

func (t timeSlice) Set(_ context.Context, uuid string, interval int) error {
	return t.change(uuid, func(g *engine.GPU) { g.TimeSlice = interval })
}

func (t timeSlice) change(uuid string, do func(*engine.GPU)) error {
	return t.board.machine.Update(func(s *engine.State) error {
		for i := range s.GPUs {
			if s.GPUs[i].UUID == uuid {
				do(&s.GPUs[i])
				return nil
			}
		}
		return errNoGPU
	})
}
