// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package meter keeps a node's usage.Account up to date and in a file.
//
// Trap. During an upgrade two plugins count the same time. Only the newest reports it and writes the file, and it begins
// with the file of the older one.
package meter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/sampler"
	"gpu-dra-driver/pkg/show/usage"
)

// labelSave labels the write of the file.
const labelSave host.Label = "usage.save"

const kind = "gpu-dra-driver/usage"

// saveInterval is the time between two writes. A process that is killed loses at most the changes since the last one.
const saveInterval = time.Minute

// Options configures a Meter. Samples is optional.
type Options struct {
	// Path is the file's. Its directory must exist.
	Path string
	// Held returns the plans of all claims on the node, and whether some are unknown.
	Held     func() (plans []plan.Plan, incomplete bool, err error)
	Snapshot func() gpu.Snapshot
	// Scanned is closed after the first scan.
	Scanned <-chan struct{}
	// Served returns the GPUs that device plugins serve, by PCI address.
	Served func() (map[string]string, bool)
	// Newest reports whether this instance counts for the node.
	Newest func() (bool, error)
	// Samples returns the last measurements.
	Samples func() sampler.Snapshot
}

// Meter is safe for concurrent use.
type Meter struct {
	host    *host.Host
	o       Options
	changed chan struct{}

	mu      sync.Mutex
	account usage.Account
	loaded  bool
	// plans are those that the records held last.
	plans []plan.Plan
}

func New(h *host.Host, o Options) *Meter {
	return &Meter{host: h, o: o, changed: make(chan struct{}, 1)}
}

// Changed makes Run read the claims again. It does not block.
func (m *Meter) Changed() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Run counts until the context ends.
func (m *Meter) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-m.o.Scanned:
	}
	save, sample := time.NewTicker(saveInterval), time.NewTicker(sampler.Interval)
	defer save.Stop()
	defer sample.Stop()
	due := true
	for ctx.Err() == nil {
		if err := m.count(due); err != nil {
			klog.FromContext(ctx).Error(err, "Counting GPU seconds failed; the time is counted later")
		}
		due = m.wait(ctx, save.C, sample.C)
	}
	if err := m.count(true); err != nil {
		klog.FromContext(ctx).Error(err, "Counting GPU seconds failed; the next start counts the time")
	}
}

// settle is the time for which changes of claims are collected, since each count reads all records.
const settle = 100 * time.Millisecond

// wait waits until the claims changed, or the file is due. Meanwhile it counts the time of each sample.
func (m *Meter) wait(ctx context.Context, save, sample <-chan time.Time) (due bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-m.changed:
			select {
			case <-ctx.Done():
			case <-time.After(settle):
			}
			return false
		case <-save:
			return true
		case <-sample:
			m.Account()
		}
	}
}

// count reads the claims and counts up to now.
func (m *Meter) count(save bool) error {
	if newest, err := m.o.Newest(); err != nil || !newest {
		return err
	}
	plans, incomplete, err := m.o.Held()
	if err != nil || incomplete {
		return err // The devices of some claims are unknown. Nothing is lost: the next call counts from the last one.
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plans = plans
	if err := m.advance(); err != nil || !save {
		return err
	}
	data, err := record.Seal(kind, &m.account)
	if err != nil {
		return err
	}
	return m.host.WriteDurable(labelSave, m.o.Path, data, 0o600)
}

// advance counts up to now with the claims that are known. The caller holds mu.
func (m *Meter) advance() error {
	boot, err := m.host.BootID()
	if err != nil {
		return err
	}
	at, err := m.host.Uptime()
	if err != nil {
		return err
	}
	if !m.loaded {
		if m.account, err = m.load(); err != nil {
			return err
		}
		m.loaded = true
	}
	var activity func(plan, device int) usage.Activity
	if m.o.Samples != nil {
		activity = activityOf(sampler.Uses(m.o.Samples(), m.plans))
	}
	served, _ := m.o.Served()
	m.account.Advance(boot, at, usage.Observation{
		Snapshot: m.o.Snapshot(), Plans: m.plans, Activity: activity,
		Served: func(address string) bool { _, ok := served[address]; return ok },
	})
	return nil
}

// load reads the file. An unreadable one counts as missing: its sums are lost.
func (m *Meter) load() (usage.Account, error) {
	data, err := m.host.ReadFile(m.o.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return usage.Account{}, nil
	}
	if err != nil {
		return usage.Account{}, fmt.Errorf("read the sums of GPU seconds: %w", err)
	}
	var a usage.Account
	if err := record.Unseal(data, kind, &a); err != nil {
		klog.Background().Error(err, "The sums of GPU seconds begin at zero again", "file", m.o.Path)
		return usage.Account{}, nil
	}
	a.Check()
	return a, nil
}

// Account returns the sums up to now; false before the first count and while another instance counts.
func (m *Meter) Account() (usage.Account, bool) {
	if newest, err := m.o.Newest(); err != nil || !newest {
		return usage.Account{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loaded || m.advance() != nil {
		return usage.Account{}, false
	}
	return m.account.Clone(), true
}
