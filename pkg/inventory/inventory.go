// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory reads from NVML and sysfs which GPUs a node has, and watches for changes.
//
// A scan opens an NVML session, reads and closes it: a session that stays open keeps the driver from being unloaded.
// A GPU that fails becomes a Problem of the Snapshot, and its neighbours are untouched. A node without a driver has
// the zero Snapshot, and an error that says why; nothing here stops the plugin.
//
// Traps. Two scans of unchanged hardware are equal, so what moves by itself (free memory, temperatures) has no place in
// a Snapshot. NVML cannot tell the address of a GPU that fell off the bus; the kernel's list under /proc can.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
)

// ErrNoDriver says that the node has no NVIDIA driver now: neither its library nor its kernel module may be there yet.
var ErrNoDriver = errors.New("no NVIDIA driver is loaded")

// Options configures an Inventory; only Library is required.
type Options struct {
	Library nvml.Library
	// ProcRoot, SysRoot and DevRoot are the machine's /proc, its /sys, and the directory that holds its /dev. Defaults:
	// /proc, /sys, /.
	ProcRoot, SysRoot, DevRoot string
	// ScanLock is held during a scan. Operations that make a GPU come and go, such as a switch of its MIG mode, hold it to
	// keep scans off. Default: none.
	ScanLock sync.Locker
	// Tick makes the ticks of Watch. Default: a time.Ticker.
	Tick func(time.Duration) (ticks <-chan time.Time, stop func())
}

// Inventory scans a node.
type Inventory struct {
	o       Options
	trigger chan struct{}
}

// New makes an Inventory; it reads nothing yet.
func New(o Options) *Inventory {
	o.ProcRoot = cmp.Or(o.ProcRoot, "/proc")
	o.SysRoot = cmp.Or(o.SysRoot, "/sys")
	o.DevRoot = cmp.Or(o.DevRoot, "/")
	if o.ScanLock == nil {
		o.ScanLock = new(sync.Mutex)
	}
	if o.Tick == nil {
		o.Tick = func(d time.Duration) (<-chan time.Time, func()) {
			t := time.NewTicker(d)
			return t.C, t.Stop
		}
	}
	return &Inventory{o: o, trigger: make(chan struct{}, 1)}
}

// Scan reads the node once. With an error the Snapshot is zero: ErrNoDriver where there is none to ask,
// nvml.ErrReplaced where this process must start again to ask it, another where NVML failed as a whole.
func (i *Inventory) Scan(ctx context.Context) (gpu.Snapshot, error) {
	i.o.ScanLock.Lock()
	defer i.o.ScanLock.Unlock()
	session, err := i.o.Library.Open()
	if errors.Is(err, nvml.LibraryNotFound) || errors.Is(err, nvml.DriverNotLoaded) {
		return gpu.Snapshot{}, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	if err != nil {
		return gpu.Snapshot{}, fmt.Errorf("open NVML: %w", err)
	}
	snapshot, err := i.read(ctx, session)
	if closeErr := session.Close(); err == nil && closeErr != nil {
		// What was read stands; but a session that stays open holds the driver, so it must be reported.
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
	n, err := session.DeviceCount()
	if err != nil && !errors.Is(err, nvml.GPUNotFound) {
		return gpu.Snapshot{}, fmt.Errorf("count the GPUs: %w", err)
	}
	handles := map[string]nvml.Device{}
	for index := range n {
		if err := ctx.Err(); err != nil {
			return gpu.Snapshot{}, err
		}
		d, g, problem := i.readGPU(session, index)
		if problem != nil {
			s.Problems = append(s.Problems, *problem)
			continue
		}
		handles[g.PCIAddress] = d
		s.GPUs = append(s.GPUs, g)
	}
	rejectDuplicates(&s)
	peers(s.GPUs, handles)
	i.locate(&s)
	slices.SortFunc(s.GPUs, func(a, b gpu.GPU) int { return cmp.Compare(a.PCIAddress, b.PCIAddress) })
	slices.SortFunc(s.Problems, func(a, b gpu.Problem) int { return cmp.Compare(a.Index, b.Index) })
	return s, nil
}

// rejectDuplicates turns GPUs that claim one identity into problems, all of them: which is the right one cannot be told.
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

// locate gives an address to problems that NVML had none for: the GPUs that the kernel lists and NVML did not read. Both
// list in the order of addresses, so they pair off, but only when there are as many of one as of the other.
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
