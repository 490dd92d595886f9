// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory reads a node's GPUs from NVML and sysfs, and watches for changes.
//
// A scan opens an NVML session, reads and closes it, because an open session keeps the driver from being unloaded.
// A failing GPU becomes a Problem of the Snapshot and does not affect the others. A node without a driver has the zero
// Snapshot and an error with the cause; the plugin keeps running.
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
	"sync/atomic"
	"time"

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
	// Scans and Trigger belong to the Inventory. Default: new ones.
	Scans   *Latest
	Trigger notify.Trigger
	// Switches notes operations that make a GPU disappear for a moment. Default: none.
	Switches *Switches
	// Interconnects has the interconnects of GPUs in MIG mode. Default: only those of earlier scans are known.
	Interconnects Interconnects
	// Health decides which faults GPUs have. Default: nothing is read, and they have none.
	Health Health
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
	// RecordedInterconnect returns the interconnect of a GPU, as of an earlier run of the plugin. It is zero if unknown.
	RecordedInterconnect(g gpu.GPU) gpu.Interconnect
}

// Switches notes switches of MIG modes, during which a GPU disappears for a moment. It never waits, because a switch or
// a scan of one GPU can hang: Watch repeats a scan that overlapped a switch, of whichever GPU.
type Switches struct{ begun, ended atomic.Int64 }

func (s *Switches) Lock(string) { s.begun.Add(1) }

func (s *Switches) Unlock(string) { s.ended.Add(1) }

// Inventory scans a node.
type Inventory struct {
	// Scans has the Snapshot that Watch delivered last.
	Scans *Latest
	// Trigger makes Watch scan now, or again after the current scan.
	Trigger notify.Trigger

	o Options
	// soon means that the next scan may end faults of GPUs.
	soon atomic.Bool
	// minors are read from the driver's files.
	minors minorNumbers
	// profiles and places, by path in sysfs, are used by one scan at a time.
	profiles map[profileKey][]gpu.Profile
	places   map[string]gpu.GPU
	// multiprocessors are known for these products, by name.
	multiprocessors map[string]int
	// last is the last readable state of each GPU, by PCI address. Only Watch uses it.
	last map[string]gpu.GPU
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
	return &Inventory{Scans: o.Scans, Trigger: o.Trigger, o: o, last: map[string]gpu.GPU{}, profiles: map[profileKey][]gpu.Profile{}, places: map[string]gpu.GPU{},
		multiprocessors: map[string]int{}, minors: minorNumbers{reading: map[string]bool{}, last: map[string]string{}}}
}

func (i *Inventory) kernel() nvml.Kernel {
	return nvml.Kernel{ProcRoot: i.o.ProcRoot, SysRoot: i.o.SysRoot}
}

// Scan reads the node once; call it from one goroutine at a time. With an error the Snapshot is zero: ErrNoDriver
// without a driver, nvml.ErrReplaced if this process must restart to use the new driver, another error if NVML failed as
// a whole.
func (i *Inventory) Scan(ctx context.Context) (gpu.Snapshot, error) {
	session, err := i.o.Library.Open()
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
	snapshot, err := i.read(ctx, session)
	if closeErr := session.Close(); err == nil && closeErr != nil {
		// The Snapshot is valid, but the open session keeps the driver loaded, so the error must be reported.
		return snapshot, fmt.Errorf("close NVML: %w", closeErr)
	}
	return snapshot, err
}

func (i *Inventory) read(ctx context.Context, session nvml.Session) (gpu.Snapshot, error) {
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
	handles := map[string]nvml.Device{}
	for index := range n {
		if err := ctx.Err(); err != nil {
			return gpu.Snapshot{}, err
		}
		d, g, problem := i.readGPU(session, index, s.Driver.Version)
		if problem != nil {
			s.Problems = append(s.Problems, *problem)
			continue
		}
		handles[g.PCIAddress] = d
		s.GPUs = append(s.GPUs, g)
	}
	rejectDuplicates(&s)
	i.keepMultiprocessors(s.GPUs)
	i.findFaults(s.GPUs, handles)
	peers(s.GPUs, handles)
	i.locate(&s)
	i.passedThrough(&s)
	slices.SortFunc(s.GPUs, func(a, b gpu.GPU) int { return cmp.Compare(a.PCIAddress, b.PCIAddress) })
	slices.SortStableFunc(s.Problems, func(a, b gpu.Problem) int { return cmp.Compare(a.Index, b.Index) })
	return s, nil
}

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

func (i *Inventory) findFaults(gpus []gpu.GPU, handles map[string]nvml.Device) {
	if i.o.Health == nil {
		return
	}
	soon := false
	for n := range gpus {
		var r *health.Reading
		if h, err := handles[gpus[n].PCIAddress].Health(); err == nil {
			r = &health.Reading{
				Recovery: int(h.Recovery), RemapFailed: h.RemapFailed || h.UnrepairableMemory, SRAMWorn: h.SRAMThresholdExceeded,
				At: time.Now(), RemapPending: h.RemapPending, Slow: h.Slowdowns != 0,
				Width: h.PCIeWidth, MaxWidth: h.PCIeMaxWidth, Busy: h.Busy,
				Corrected: h.CorrectableErrors, Uncorrected: h.UncorrectableErrors,
				CorrectedRows: h.CorrectableRows, UncorrectedRows: h.UncorrectableRows,
			}
		}
		now := i.o.Health.Poll(gpus[n], r)
		gpus[n].Faults, gpus[n].Advice, gpus[n].Unmonitored = now.Faults(), now.Advice(), now.Unmonitored()
		soon = soon || now.Clearing()
	}
	i.soon.Store(soon)
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
