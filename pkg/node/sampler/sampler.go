// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu/inventory"
)

const (
	// Interval is the time between two readings.
	Interval = 10 * time.Second
	// sampleInterval is the time between two samples of performance counters; NVML needs 100 ms.
	sampleInterval = 250 * time.Millisecond
	// readLimit limits a reading. Later answers are dropped.
	readLimit = 5 * time.Second
)

// Options configures a Sampler. All fields but ProcRoot, Mounts and Idle are required.
type Options struct {
	Library nvml.Library
	Locks   *Locks
	// Scans and Records determine the GPUs to measure: those of prepared claims, and with Idle all others too.
	Scans   *inventory.Latest
	Records plan.Held
	Idle    bool
	// ProcRoot is the /proc of this process's PID namespace, because NVML lists processes by the PIDs of its caller. It
	// is empty if that is not the node's: NVML then lists the processes of the namespace only.
	ProcRoot string
	// Mounts recognizes mounts of metadata files. Without it the claims of processes are unknown.
	Mounts *Mounts
}

// Locks prevents readings.
type Locks struct {
	mu    sync.Mutex
	locks int
	// locked is closed by the first Lock, reading by the end of a reading; it is nil between readings.
	locked, reading chan struct{}
}

func NewLocks() *Locks { return &Locks{locked: make(chan struct{})} }

// Sampler measures GPUs.
type Sampler struct {
	*Locks
	o        Options
	snapshot atomic.Pointer[Snapshot]

	// measuring are the measurements of GPUs, by PCI address. since has the times of the newest samples of processes,
	// by UUID.
	measuring host.Attempts[measured]
	since     map[string]uint64
	// owners is nil if processes cannot be listed.
	owners *owners
}

func New(o Options) *Sampler {
	s := &Sampler{Locks: o.Locks, o: o, since: map[string]uint64{}}
	s.snapshot.Store(&Snapshot{})
	if o.ProcRoot != "" {
		s.owners = &owners{root: o.ProcRoot, mounts: o.Mounts}
	}
	return s
}

// Snapshot returns the last reading. It has no GPUs before the first one, and while none are to be measured.
func (s *Sampler) Snapshot() Snapshot { return *s.snapshot.Load() }

// Run measures from the first scan on until the context ends. It does not wait for a call of NVML that hangs.
func (s *Sampler) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.o.Scans.Scanned():
	}
	for last := ""; ctx.Err() == nil; {
		plans, _, _ := s.o.Records.Held() // The engine reports unreadable records.
		err := s.read(ctx, Targets(s.o.Scans.Snapshot(), plans, s.o.Idle))
		if text := fmt.Sprint(err); text != last {
			if last = text; err != nil {
				klog.FromContext(ctx).Info("GPUs cannot be measured; trying again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(Interval):
		}
	}
}

// Lock ends a reading and prevents others until Unlock, because a GPU with clients can refuse to switch its MIG mode.
// It does not wait for a call of NVML that hangs. Several callers can hold the lock.
func (l *Locks) Lock(string) {
	l.mu.Lock()
	if l.locks++; l.locks == 1 {
		close(l.locked)
	}
	reading := l.reading
	l.mu.Unlock()
	if reading != nil {
		select {
		case <-reading:
		case <-time.After(2 * time.Second):
		}
	}
}

func (l *Locks) Unlock(string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.locks--; l.locks == 0 {
		l.locked = make(chan struct{})
	}
}

// newestSample notes a sample of processes, and returns the time of the newest one of the GPU.
func (s *Sampler) newestSample(uuid string, at uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since[uuid] = max(s.since[uuid], at)
	return s.since[uuid]
}

var errHangs = fmt.Errorf("NVML has not answered for %s", 2*readLimit)

// read measures all GPUs, each in a goroutine of its own.
func (s *Sampler) read(ctx context.Context, targets []Target) error {
	if len(targets) == 0 {
		s.snapshot.Store(&Snapshot{})
		return nil
	}
	s.mu.Lock()
	locked, reading := s.locked, make(chan struct{})
	switch {
	case s.locks > 0:
		s.mu.Unlock()
		return nil // The last reading stays for the seconds of a switch.
	case s.reading != nil:
		s.mu.Unlock()
		s.snapshot.Store(&Snapshot{})
		return errHangs
	}
	s.reading = reading
	s.mu.Unlock()
	type answer struct {
		gpus []GPU
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		a.err = host.Guard(func() (err error) {
			a.gpus, err = s.measureAll(targets, locked)
			return err
		})
		s.mu.Lock()
		s.reading = nil
		s.mu.Unlock()
		close(reading)
		answers <- a
	}()
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(2 * readLimit):
		s.snapshot.Store(&Snapshot{})
		return errHangs
	case a := <-answers:
		if a.err != nil {
			s.snapshot.Store(&Snapshot{})
			return a.err
		}
		s.snapshot.Store(&Snapshot{At: time.Now(), GPUs: a.gpus})
		return nil
	}
}

// measured is the measurement of a target in a session, which closed ends.
type measured struct {
	target Target
	closed chan error
	gpu    GPU
	ok     bool
}

// measureAll opens a session, and closes it after the last answer, also of a GPU that hangs.
func (s *Sampler) measureAll(targets []Target, locked <-chan struct{}) ([]GPU, error) {
	session, err := s.o.Library.Open()
	if err != nil {
		return nil, fmt.Errorf("open NVML: %w", err)
	}
	pause := func() {
		select {
		case <-locked:
		case <-time.After(sampleInterval):
		}
	}
	if s.owners != nil {
		s.owners.next()
	}
	closed, gpus := make(chan error, 1), map[string]measured{}
	for _, t := range targets {
		gpus[t.PCIAddress] = measured{target: t, closed: closed}
	}
	answers := s.measuring.Begin(gpus, func(m *measured) error {
		m.gpu, m.ok = s.measure(session, m.target, pause)
		return nil
	})
	go func() {
		for range answers { // It is closed after the last one.
		}
		closed <- host.Guard(session.Close)
	}()
	select {
	case err = <-closed:
	case <-time.After(readLimit):
	}
	var out []GPU
	ended, _ := s.measuring.Results()
	for _, a := range ended {
		if m := a.Item; m.closed == closed && m.ok && a.Err == nil {
			out = append(out, m.gpu)
		}
	}
	slices.SortFunc(out, func(a, b GPU) int { return cmp.Compare(a.Address, b.Address) })
	return out, err
}
