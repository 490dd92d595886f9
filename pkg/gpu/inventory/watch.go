// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
)

const (
	// pollInterval is the time between two reads of the watched files, which are cheap.
	pollInterval = 5 * time.Second
	// pollsPerScan is the number of polls after which Watch scans even if no file changed, because no file shows a lost
	// GPU.
	pollsPerScan = 6
	// pollsToUnknown is the number of polls without an answer of NVML after which the GPUs' health is unknown. After as
	// many scans during switches of MIG modes, their result counts, because a switch hangs.
	pollsToUnknown = 12
)

// ErrHealthUnknown means that NVML has failed as a whole, or has not answered, for a minute.
var ErrHealthUnknown = errors.New("the health of the GPUs is unknown, because NVML has not answered for a minute")

// Watch stores the Snapshot and calls found at the start and whenever the Snapshot or the error changes, until the
// context ends. It returns the context's error. found runs in Watch's goroutine: the next scan waits for it. Nothing is
// stored before NVML's first answer, because no answer is not a node without a driver.
//
// If a scan fails although a driver is loaded, found gets the last Snapshot with the error, so that a failure of NVML
// does not withdraw a node's devices. It is zero before NVML's first answer. If scans fail or hang for longer, the
// error is ErrHealthUnknown, and the Snapshot of an earlier process stands for the first answer. Without a driver, or
// with another one than this process has loaded, the Snapshot is zero.
// While scans fail, each poll is a scan.
func (i *Inventory) Watch(ctx context.Context, found func(gpu.Snapshot, error)) error {
	ticks, stop := i.o.Tick(pollInterval)
	defer stop()
	deliver := func(s gpu.Snapshot, err error) {
		if err == nil || errors.Is(err, ErrNoDriver) { // Otherwise it is the last one, if there is any.
			i.Scans.Set(s)
			defer i.save(ctx, s)
		}
		found(s, err)
	}

	var last result
	known := i.earlier()    // the last answer, also of an earlier process
	silent, repeats := 0, 0 // polls without an answer of NVML, and scans in a row during switches
	repeated := false       // whether the first scan was repeated
	for first := true; ; {
		now := result{files: i.files()} // Before the scan: the next poll shows a change during it.
		i.bindings = Bindings(i.o.SysRoot)
		i.scan(ctx, &now, func() {
			if silent++; silent == pollsToUnknown {
				last.err, last.snapshot, first = ErrHealthUnknown, known, false
				deliver(last.snapshot, last.err)
			}
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if now.switched && repeats < pollsToUnknown {
			repeats++
			if err := i.pause(ctx, ticks); err != nil {
				return err
			}
			continue
		}
		switch gone := errors.Is(now.err, ErrNoDriver) || errors.Is(now.err, nvml.ErrReplaced); {
		case first && !repeated && now.repeats():
			last, repeated = now, true
			continue
		case now.err == nil || gone:
			silent = 0
			i.keepInterconnects(now.snapshot.GPUs)
			if !gone {
				now.silent = i.keepSilent(&now.snapshot, known)
				now.keep(last, i.kernel())
			}
			i.remember(now.snapshot.GPUs)
			known = now.snapshot
		default:
			now.snapshot = last.snapshot
			if silent++; silent >= pollsToUnknown {
				now.snapshot = known
				now.err = fmt.Errorf("%w: %w", ErrHealthUnknown, now.err)
			}
		}
		if first || fmt.Sprint(now.err) != fmt.Sprint(last.err) || !reflect.DeepEqual(now.snapshot, last.snapshot) {
			deliver(now.snapshot, now.err)
		}
		if last, first = now, false; !now.switched {
			repeats = 0 // Otherwise a switch hangs, and each scan counts.
		}
		if err := i.wait(ctx, ticks, last); err != nil {
			return err
		}
	}
}

// keepSilent adds the last state of the GPUs for which NVML did not answer, because hanging alone withdraws no device.
// After a while it marks them as silent. It reports whether NVML did not answer for a GPU.
func (i *Inventory) keepSilent(s *gpu.Snapshot, last gpu.Snapshot) (silent bool) {
	scans := map[string]int{}
	s.Problems = slices.DeleteFunc(s.Problems, func(p gpu.Problem) bool {
		if !p.Silent {
			return false
		}
		silent = true
		n := slices.IndexFunc(last.GPUs, func(g gpu.GPU) bool {
			return g.PCIAddress == p.PCIAddress || p.PCIAddress == "" && g.Index == p.Index
		})
		if n < 0 {
			return false
		}
		g := last.GPUs[n]
		if _, another := s.ByAddress(g.PCIAddress); another {
			return false
		}
		scans[g.PCIAddress] = i.silent[g.PCIAddress] + 1
		g.Silent = scans[g.PCIAddress] >= pollsToUnknown
		if i.o.Health != nil {
			i.poll(&g, nil) // XIDs still arrive.
		}
		for m := range s.GPUs {
			if other := &s.GPUs[m]; slices.Contains(g.Unreachable, other.PCIAddress) {
				other.Unreachable = slices.Sorted(slices.Values(append(other.Unreachable, g.PCIAddress)))
			}
		}
		s.GPUs = append(s.GPUs, g)
		return true
	})
	if len(s.Problems) == 0 {
		s.Problems = nil // As without a hang: Watch compares Snapshots.
	}
	i.silent = scans
	slices.SortFunc(s.GPUs, byAddress)
	return silent
}

// keepInterconnects completes GPUs in MIG mode, which hides their links: partitions must not change the group of a GPU.
func (i *Inventory) keepInterconnects(gpus []gpu.GPU) {
	for n := range gpus {
		g := &gpus[n]
		if last := i.last[g.PCIAddress]; g.MIG.Enabled && last.UUID == g.UUID {
			g.Interconnect = last.Interconnect
		} else if g.MIG.Enabled && i.o.Interconnects != nil {
			g.Interconnect = i.o.Interconnects.RecordedInterconnect(*g)
		}
	}
}

// remember stores the states of GPUs for keepInterconnects.
func (i *Inventory) remember(gpus []gpu.GPU) {
	for _, g := range gpus {
		i.last[g.PCIAddress] = g
	}
}

// scan stores a scan's result in r, and calls late at each poll interval meanwhile, because NVML can hang.
func (i *Inventory) scan(ctx context.Context, r *result, late func()) {
	ticks, stop := i.o.Tick(pollInterval)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended := i.o.Switches.ended.Load()
		r.snapshot, r.err = i.Scan(ctx)
		r.switched = i.o.Switches.begun.Load() != ended
	}()
	for {
		select {
		case <-done:
			return
		case <-ticks:
			late()
		}
	}
}

// result is one scan and the state of the files before it.
type result struct {
	files    string
	snapshot gpu.Snapshot
	err      error
	// switched means that a MIG mode was switched meanwhile, silent that NVML did not answer for a GPU.
	switched, silent bool
	// doubted are the PCI addresses of GPUs that keep their last state.
	doubted map[string]bool
}

// pause waits for the next poll.
func (i *Inventory) pause(ctx context.Context, ticks <-chan time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-ticks:
		return nil
	}
}

// wait returns when the next scan is due.
func (i *Inventory) wait(ctx context.Context, ticks <-chan time.Time, last result) error {
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-i.Trigger:
			return nil
		case <-ticks:
			if n >= pollsPerScan || last.err != nil || last.silent || len(last.doubted) > 0 || i.soon.Load() ||
				i.files() != last.files {
				return nil
			}
		}
	}
}

var nodeForm = regexp.MustCompile(`^nvidia(\d+|ctl|-uvm)$`)

// files returns the state that polls compare: the loaded driver, its GPUs with their bindings and numbers, the device
// nodes and MIG instances. It ignores times under /proc, which are the times of the read.
func (i *Inventory) files() string {
	var b strings.Builder
	version, _ := os.ReadFile(filepath.Join(i.o.ProcRoot, "driver/nvidia/version"))
	b.Write(version)
	nodes, _ := os.ReadDir(filepath.Join(i.o.DevRoot, "dev"))
	for _, e := range nodes {
		if strings.HasPrefix(e.Name(), "nvidia") && nodeForm.MatchString(e.Name()) {
			b.WriteString("\n" + e.Name())
		}
	}
	list := func(dir string) (entries []os.DirEntry) {
		entries, _ = os.ReadDir(dir)
		for _, e := range entries {
			b.WriteString("\n" + e.Name())
		}
		return entries
	}
	gpus := filepath.Join(i.o.ProcRoot, "driver/nvidia/gpus")
	var addresses []string
	for _, e := range list(gpus) {
		addresses = append(addresses, e.Name())
	}
	// A GPU that left and came back during a scan has the name and number of before.
	bindings := Bindings(i.o.SysRoot)
	b.WriteString(i.minors.read(gpus, addresses, bindings))
	b.WriteString(bindings)
	// Partitions appear and disappear as directories of the kernel's capabilities, gpu0/mig/gi1/ci0.
	capabilities := filepath.Join(i.o.ProcRoot, "driver/nvidia/capabilities")
	for _, g := range list(capabilities) {
		instances := filepath.Join(capabilities, g.Name(), "mig")
		for _, gi := range list(instances) {
			list(filepath.Join(instances, gi.Name()))
		}
	}
	return b.String()
}

// Latest holds the newest Snapshot for callers that do not scan themselves. It is safe for concurrent use.
type Latest struct {
	snapshot atomic.Pointer[gpu.Snapshot]
	once     sync.Once
	scanned  chan struct{}
}

func NewLatest() *Latest {
	l := &Latest{scanned: make(chan struct{})}
	l.snapshot.Store(&gpu.Snapshot{})
	return l
}

func (l *Latest) Snapshot() gpu.Snapshot { return *l.snapshot.Load() }

// Scanned returns a channel that the first Set closes.
func (l *Latest) Scanned() <-chan struct{} { return l.scanned }

func (l *Latest) Set(s gpu.Snapshot) {
	l.snapshot.Store(&s)
	l.once.Do(func() { close(l.scanned) })
}
