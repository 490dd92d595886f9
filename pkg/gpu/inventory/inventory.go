// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory reads a node's GPUs from NVML and sysfs, and watches for changes.
//
// A scan opens an NVML session, reads and closes it, because an open session keeps the driver from being unloaded. A
// GPU that fails or hangs becomes a Problem of the Snapshot and does not affect the others. Watch keeps the last state
// of one that hangs. A node without a driver has the zero Snapshot and an error with the cause; the plugin keeps
// running.
//
// Traps. Two scans of unchanged hardware must be equal, so changing values (free memory, temperatures) are not in a
// Snapshot. NVML cannot report the address of a GPU that is off the bus; the kernel's list under /proc can.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// ErrNoDriver means that the node has no NVIDIA driver now: neither NVML nor the kernel has it.
var ErrNoDriver = errors.New("no NVIDIA driver is loaded")

// Options configures an Inventory. Library and the roots are required.
type Options struct {
	Library nvml.Library
	// ProcRoot and SysRoot are the machine's /proc and /sys; DevRoot is the directory that holds its /dev.
	ProcRoot, SysRoot, DevRoot string
	// Cgroups is the node's directory of cgroups of version 2. Default: the node has none.
	Cgroups string
	// Scans and Trigger belong to the Inventory. Default: new ones.
	Scans   *Latest
	Trigger notify.Trigger
	// Switches notes operations that make a GPU disappear for a moment. Default: none.
	Switches *Switches
	// Interconnects has the interconnects of GPUs in MIG mode. Default: only those of earlier scans are known.
	Interconnects Interconnects
	// Health decides which faults GPUs have. Default: nothing is read, and they have none.
	Health Health
	// File keeps the last Snapshot for the next process, written by Host. Default: none does.
	File string
	Host *host.Host
	// Tick creates the ticks of Watch. Default: a time.Ticker.
	Tick func(time.Duration) (ticks <-chan time.Time, stop func())
}

// Health decides which faults a GPU has, from the driver's answers of all scans.
type Health interface {
	// Poll returns the GPU's health after an answer or, with a nil Reading, after a failed query.
	Poll(g gpu.GPU, r *health.Reading) health.GPU
	// NoDriver is called when no driver is loaded.
	NoDriver()
}

// Interconnects are recorded before MIG mode hides them.
type Interconnects interface {
	// RecordedInterconnect returns the interconnect of a GPU, as of an earlier run of the plugin. It is zero if
	// unknown.
	RecordedInterconnect(g gpu.GPU) gpu.Interconnect
}

// Switches notes switches of MIG modes, during which a GPU disappears for a moment. It never waits, because a switch or
// a scan of one GPU can hang: Watch repeats a scan that overlapped a switch, of whichever GPU.
type Switches struct{ begun, ended atomic.Int64 }

func (s *Switches) Lock(string) { s.begun.Add(1) }

func (s *Switches) Unlock(string) { s.ended.Add(1) }

// Inventory scans a node.
type Inventory struct {
	// Scans has the Snapshot of NVML's last answer.
	Scans *Latest
	// Trigger makes Watch scan now, or again after the current scan.
	Trigger notify.Trigger

	o Options
	// soon means that the next scan may end faults of GPUs.
	soon atomic.Bool
	// bindings are those from before the last scan.
	bindings string
	// minors are read from the driver's files.
	minors minorNumbers
	// reading has the attempts to read GPUs, by NVML's index, linking those to ask for their peers, by PCI address.
	reading host.Attempts[reading]
	linking host.Attempts[linking]
	// profiles has the []gpu.Profile of each profileKey. An attempt that hangs can use it beside a later scan.
	profiles sync.Map
	// places, by path in sysfs, and peers, the last answers for pairs of UUIDs, are used by one scan at a time.
	places map[string]gpu.GPU
	peers  map[[2]string]bool
	// multiprocessors are known for these products, by name.
	multiprocessors map[string]int
	// last is the last readable state of each GPU, and silent the number of scans without an answer of it since then,
	// by PCI address. Only Watch uses them.
	last   map[string]gpu.GPU
	silent map[string]int
}

// New returns an Inventory without reading the node.
func New(o Options) *Inventory {
	if o.Scans == nil {
		o.Scans = NewLatest()
	}
	if o.Trigger == nil {
		o.Trigger = notify.NewTrigger()
	}
	if o.Switches == nil {
		o.Switches = new(Switches)
	}
	if o.Tick == nil {
		o.Tick = func(d time.Duration) (<-chan time.Time, func()) {
			t := time.NewTicker(d)
			return t.C, t.Stop
		}
	}
	return &Inventory{
		Scans: o.Scans, Trigger: o.Trigger, o: o, last: map[string]gpu.GPU{}, places: map[string]gpu.GPU{},
		multiprocessors: map[string]int{}, minors: minorNumbers{last: map[string]string{}},
	}
}

func (i *Inventory) kernel() nvml.Kernel {
	return nvml.Kernel{ProcRoot: i.o.ProcRoot, SysRoot: i.o.SysRoot}
}

// Scan reads the node once; call it from one goroutine at a time. With an error the Snapshot is zero: ErrNoDriver
// without a driver, nvml.ErrReplaced if this process must restart to use the new driver, another error if NVML failed
// as a whole. It does not wait for a GPU that hangs.
func (i *Inventory) Scan(ctx context.Context) (gpu.Snapshot, error) {
	opened, err := i.o.Library.Open()
	// While a driver container restarts, the library can be missing or fail although the module is loaded.
	if (errors.Is(err, nvml.LibraryNotFound) || errors.Is(err, nvml.DriverNotLoaded)) && !i.kernel().HasDriver() {
		if i.o.Health != nil {
			i.o.Health.NoDriver()
		}
		return gpu.Snapshot{}, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	if err != nil {
		return gpu.Snapshot{}, fmt.Errorf("open NVML: %w", err)
	}
	s := &session{Session: opened}
	snapshot, err := i.read(ctx, s)
	if s.hangs {
		go func() {
			s.late.Wait()
			_ = opened.Close()
		}()
		return snapshot, err
	}
	if closeErr := opened.Close(); err == nil && closeErr != nil {
		// The Snapshot is valid, but the open session keeps the driver loaded, so the error must be reported.
		return snapshot, fmt.Errorf("close NVML: %w", closeErr)
	}
	return snapshot, err
}

// session is the NVML session of one scan. It stays open for the calls that the scan does not wait for.
type session struct {
	nvml.Session
	hangs bool
	late  sync.WaitGroup
}

// AnswerInterval is the interval of checks whether NVML answers. GPUs without persistence mode can take seconds each.
const AnswerInterval = 2500 * time.Millisecond

// await waits for attempts, for as long as one of them ends in each interval.
func (i *Inventory) await(s *session, answers <-chan struct{}) {
	ticks, stop := i.o.Tick(AnswerInterval)
	defer stop()
	for silent := false; ; {
		select {
		case _, more := <-answers:
			if !more {
				return
			}
			silent = false
		case <-ticks:
			if silent {
				s.hangs = true
				s.late.Go(func() {
					for range answers { // It is closed after the last one.
					}
				})
				return
			}
			silent = true
		}
	}
}

func (i *Inventory) read(ctx context.Context, session *session) (gpu.Snapshot, error) {
	var s gpu.Snapshot
	var err error
	if s.Driver.Version, err = session.DriverVersion(); err != nil {
		return gpu.Snapshot{}, fmt.Errorf("read the driver's version: %w", err)
	}
	if v, err := session.CUDAVersion(); err == nil {
		s.Driver.CUDA = gpu.Version{Major: v / 1000, Minor: v % 1000 / 10}
	}
	s.Machine = i.sys("class/dmi/id/product_name")
	n, err := session.DeviceCount()
	if err != nil && !errors.Is(err, nvml.GPUNotFound) {
		return gpu.Snapshot{}, fmt.Errorf("count the GPUs: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return gpu.Snapshot{}, err
	}
	read := i.readGPUs(session, n, &s)
	rejectDuplicates(&s)
	i.keepMultiprocessors(s.GPUs)
	i.findFaults(s.GPUs, read)
	i.findPeers(session, s.GPUs, read)
	i.locate(&s)
	i.passedThrough(&s)
	slices.SortFunc(s.GPUs, byAddress)
	slices.SortStableFunc(s.Problems, func(a, b gpu.Problem) int { return cmp.Compare(a.Index, b.Index) })
	return s, nil
}

func byAddress(a, b gpu.GPU) int { return cmp.Compare(a.PCIAddress, b.PCIAddress) }

// keepMultiprocessors completes GPUs in MIG mode, whose cores the driver does not count. GPUs of a product have equally
// many. So a switch of the mode does not change what a node publishes.
func (i *Inventory) keepMultiprocessors(gpus []gpu.GPU) {
	for _, g := range gpus {
		if g.ProductName != "" && g.Multiprocessors > 0 {
			i.multiprocessors[g.ProductName] = g.Multiprocessors
		}
	}
	for n := range gpus {
		if g := &gpus[n]; g.Multiprocessors == 0 && g.MIG.Enabled {
			g.Multiprocessors = i.multiprocessors[g.ProductName]
		}
	}
}

func (i *Inventory) findFaults(gpus []gpu.GPU, read map[string]reading) {
	if i.o.Health == nil {
		return
	}
	soon := false
	for n := range gpus {
		soon = i.poll(&gpus[n], read[gpus[n].PCIAddress].health) || soon
	}
	i.soon.Store(soon)
}

// poll sets the faults of a GPU. It returns whether the next answer may end them.
func (i *Inventory) poll(g *gpu.GPU, r *health.Reading) (soon bool) {
	now := i.o.Health.Poll(*g, r)
	g.Faults, g.Advice, g.Unmonitored = now.Faults(), now.Advice(), now.Unmonitored()
	return now.Clearing()
}

// rejectDuplicates turns all GPUs with the same identity into problems, because none of them is certainly the right
// one.
func rejectDuplicates(s *gpu.Snapshot) {
	addresses, uuids := map[string]int{}, map[string]int{}
	for _, g := range s.GPUs {
		addresses[g.PCIAddress]++
		uuids[g.UUID]++
	}
	s.GPUs = slices.DeleteFunc(s.GPUs, func(g gpu.GPU) bool {
		p := gpu.Problem{PCIAddress: g.PCIAddress, UUID: g.UUID, Index: g.Index}
		switch {
		case addresses[g.PCIAddress] > 1:
			p.Message = fmt.Sprintf("%d GPUs report the PCI address %s", addresses[g.PCIAddress], g.PCIAddress)
		case uuids[g.UUID] > 1:
			p.Message = fmt.Sprintf("%d GPUs report the UUID %s", uuids[g.UUID], g.UUID)
		default:
			return false
		}
		s.Problems = append(s.Problems, p)
		return true
	})
}

// locate adds missing addresses to problems, from the kernel's GPUs that NVML did not read. Both lists are in order of
// addresses, so it matches them one by one, but only if they have the same length.
func (i *Inventory) locate(s *gpu.Snapshot) {
	entries, err := os.ReadDir(filepath.Join(i.o.ProcRoot, "driver/nvidia/gpus"))
	if err != nil {
		return
	}
	known := map[string]bool{}
	for _, g := range s.GPUs {
		known[g.PCIAddress] = true
	}
	var unplaced []*gpu.Problem
	for n := range s.Problems {
		if p := &s.Problems[n]; p.PCIAddress != "" {
			known[p.PCIAddress] = true
		} else {
			unplaced = append(unplaced, p)
		}
	}
	var unread []string
	for _, e := range entries {
		if address, err := gpu.CanonicalAddress(e.Name()); err == nil && !known[address] {
			unread = append(unread, address)
		}
	}
	if len(unread) != len(unplaced) {
		return
	}
	slices.Sort(unread)
	for n, p := range unplaced {
		p.PCIAddress = unread[n]
	}
}

// passedThrough adds the GPUs that the kernel keeps for virtual machines: NVML does not list them.
func (i *Inventory) passedThrough(s *gpu.Snapshot) {
	entries, err := os.ReadDir(filepath.Join(i.o.SysRoot, "bus/pci/drivers/vfio-pci"))
	if err != nil {
		return
	}
	for _, e := range entries {
		address, err := gpu.CanonicalAddress(e.Name())
		if err != nil || i.sys("bus/pci/devices", address, "vendor") != "0x10de" ||
			!strings.HasPrefix(i.sys("bus/pci/devices", address, "class"), "0x03") {
			continue // The class 0x03 means display and 3D controllers. A GPU's audio function has another one.
		}
		s.Problems = append(s.Problems, gpu.Problem{
			PCIAddress: address, Index: -1,
			Message: "it is bound to vfio-pci, for virtual machines. Bind it to the driver nvidia to publish it",
		})
	}
}
