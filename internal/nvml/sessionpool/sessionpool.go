// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package sessionpool shares one open NVML session among successive operations on GPUs, and decides whether a GPU is
// gone.
package sessionpool

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
)

// idleTimeout is the time that NVML stays open after an operation. The steps of one claim, and the claims after a
// restart, reuse the session, because opening NVML costs more than most operations. An open session prevents unloading
// the driver, so the time is short.
const idleTimeout = 500 * time.Millisecond

// callLimit limits the wait for NVML to open or close. It is below the kubelet's 45 s, and above the time that the
// driver needs to initialise many GPUs.
const callLimit = 30 * time.Second

// Pool shares one open NVML session among operations. It is safe for concurrent use.
type Pool struct {
	// After is the clock of the limit of NVML's calls; a test may replace it. Default: time.After.
	After func(time.Duration) <-chan time.Time

	library nvml.Library
	listed  func(address string) bool
	reports notify.Reporter

	mu      sync.Mutex
	session nvml.Session
	// profiles are those that the session has listed, by the GPU's UUID.
	profiles map[string][]nvml.GPUInstanceProfile
	users    int
	idle     *time.Timer
	pending  *call // nil if no call is in progress
}

// call is a call of NVML that opens or closes the session. There is one at a time: if it hangs, no second one joins it.
type call struct {
	query string
	began time.Time
	ended chan struct{}
	err   error // set before ended is closed
}

// New makes a Pool. listed reports whether the kernel driver has the GPU at a PCI address, as nvml.Kernel does. The
// Pool reports errors of closing a session.
func New(library nvml.Library, listed func(address string) bool, reports notify.Reporter) *Pool {
	p := &Pool{After: time.After, library: library, listed: listed, reports: reports}
	p.idle = time.AfterFunc(idleTimeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeUnused()
	})
	return p
}

// errNoGPU means that the kernel driver has no such GPU: it is unplugged, unbound or replaced, or no driver is loaded.
var errNoGPU = errors.New("the driver has no such GPU")

// IsGone reports that an error means a GPU without its partitions and settings: the driver does not have it, or it is
// lost until a reset, which removes them. Any other error leaves open what is on the GPU.
func IsGone(err error) bool {
	return errors.Is(err, errNoGPU) || errors.Is(err, nvml.GPUIsLost) || errors.Is(err, nvml.ResetRequired)
}

// GPU is a GPU of an open session.
type GPU struct {
	nvml.Device
	pool          *Pool
	session       nvml.Session
	address, uuid string
}

// Reopen gets the GPU's handle again, which a switch of the MIG mode invalidates. It asks no other GPU, because that
// one may hang.
func (g *GPU) Reopen() error {
	d, err := g.session.DeviceAt(g.address)
	if err != nil {
		return fmt.Errorf("find the GPU at %s: %w", g.address, err)
	}
	is, err := d.UUID()
	if err != nil {
		return fmt.Errorf("read the UUID of the GPU at %s: %w", g.address, err)
	}
	if is != g.uuid {
		return fmt.Errorf("%w: at %s is %s instead of %s", errNoGPU, g.address, is, g.uuid)
	}
	g.Device = d
	return nil
}

// GPUInstanceProfiles asks NVML once in a session, because NVML needs a query for each profile. The caller must not
// change the list.
func (g *GPU) GPUInstanceProfiles() ([]nvml.GPUInstanceProfile, error) {
	p := g.pool
	p.mu.Lock()
	known, current := p.profiles[g.uuid]
	current = current && p.session == g.session
	p.mu.Unlock()
	if current {
		return known, nil
	}
	profiles, err := g.Device.GPUInstanceProfiles()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.session == g.session {
		p.profiles[g.uuid] = profiles
	}
	return profiles, err
}

// With runs an operation on a GPU. NVML lists GPUs only when it is opened: if an older session does not find the GPU,
// With tries a new one. IsGone reports the error of a GPU that the kernel driver does not have.
func (p *Pool) With(address, uuid string, do func(*GPU) error) error {
	for {
		session, fresh, err := p.acquire()
		if err != nil {
			return p.explain(address, err)
		}
		g := &GPU{pool: p, session: session, address: address, uuid: uuid}
		stale := false
		err = host.Guard(func() error {
			err := g.Reopen()
			if stale = !fresh && err != nil; err != nil {
				return err
			}
			return do(g)
		})
		// A stale session stays while other operations use it: a later attempt gets a new one.
		if closed := p.release(session, stale); !stale || !closed {
			return p.explain(address, err)
		}
	}
}

func (p *Pool) explain(address string, err error) error {
	if err == nil || IsGone(err) || p.listed(address) {
		return err
	}
	return fmt.Errorf("%w at %s: %w", errNoGPU, address, err)
}

// Undo removes an effect from a GPU. do reports whether it removed the effect. If there is nothing to remove, or the
// GPU is gone, Undo asks again in a new session, because one wrong answer would leave the effect without an owner.
func (p *Pool) Undo(address, uuid string, do func(*GPU) (removed bool, err error)) (err error) {
	for range 2 {
		removed := false
		err = p.With(address, uuid, func(g *GPU) (err error) {
			removed, err = do(g)
			return err
		})
		if removed || err != nil && !IsGone(err) {
			return err
		}
		p.CloseUnused()
	}
	return err
}

// CloseUnused closes the session, so that the next operation opens a new one, unless an operation uses it.
func (p *Pool) CloseUnused() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeUnused()
}

// acquire returns the session; fresh reports that it has just been opened. While NVML hangs it returns an error: at the
// call's limit, and then at once until the call answers.
func (p *Pool) acquire() (session nvml.Session, fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.session == nil {
		c := p.pending
		if fresh = c == nil; fresh {
			c = p.begin("nvmlInit", p.library.Open)
		}
		p.mu.Unlock()
		select {
		case <-c.ended:
			err = c.err
		case <-p.After(callLimit - time.Since(c.began)):
			err = fmt.Errorf("%s has not answered for %s: %w", c.query, callLimit, nvml.Timeout)
		}
		p.mu.Lock()
		if err != nil {
			return nil, false, fmt.Errorf("open NVML: %w", err)
		}
	}
	p.idle.Stop()
	p.users++
	return p.session, fresh, nil
}

// begin calls NVML in a goroutine, because the call can hang. The caller holds p.mu.
func (p *Pool) begin(query string, do func() (nvml.Session, error)) *call {
	c := &call{query: query, began: time.Now(), ended: make(chan struct{})}
	p.pending = c
	go func() {
		var session nvml.Session
		c.err = host.Guard(func() (err error) {
			session, err = do()
			return err
		})
		p.mu.Lock()
		defer p.mu.Unlock()
		p.session, p.pending, p.profiles = session, nil, map[string][]nvml.GPUInstanceProfile{}
		p.idle.Reset(idleTimeout) // The callers may be gone.
		close(c.ended)
	}()
	return c
}

// release ends a use of a session, and reports whether the session is closed or replaced. A stale one is closed at
// once.
func (p *Pool) release(session nvml.Session, stale bool) (closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if stale {
		p.closeUnused()
	} else if p.users == 0 {
		p.idle.Reset(idleTimeout)
	}
	return p.session != session
}

// closeUnused closes the session if no operation uses it. It does not wait for NVML. The caller holds p.mu.
func (p *Pool) closeUnused() {
	session := p.session
	if p.users > 0 || session == nil {
		return
	}
	p.session = nil
	p.begin("nvmlShutdown", func() (nvml.Session, error) {
		if err := session.Close(); err != nil {
			p.reports.Report(fmt.Errorf("close NVML: %w", err))
		}
		return nil, nil
	})
}
