// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package meter keeps a node's usage.Account up to date and in a file.
//
// Trap. During an upgrade two plugins count the same time. Only the newest reports it and writes the file, and it
// begins with the file of the older one.
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
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/sampler"
	"gpu-dra-driver/pkg/node/usage"
)

// labelSave labels the write of the file.
const labelSave host.Label = "usage.save"

const kind = "gpu-dra-driver/usage"

// saveInterval is the time between two writes. A process that is killed loses at most the changes since the last one.
const saveInterval = time.Minute

// Options configures a Meter. Samples is optional.
type Options struct {
	// Path is the path of the file. Its directory must exist.
	Path          string
	Records       plan.Held
	Scans         *inventory.Latest
	DevicePlugins plan.DevicePlugins
	// Instance counts for the node while it is the newest.
	Instance *host.Instance
	Samples  Samples
}

// Samples has measurements. *sampler.Sampler implements it.
type Samples interface {
	// Snapshot returns the last measurements.
	Snapshot() sampler.Snapshot
}

// Meter is safe for concurrent use.
type Meter struct {
	host    *host.Host
	o       Options
	changed notify.Trigger

	mu      sync.Mutex
	account usage.Account
	loaded  bool
	// plans are those that the records held last.
	plans []plan.Plan
}

func New(h *host.Host, o Options) *Meter {
	return &Meter{host: h, o: o, changed: notify.NewTrigger()}
}

// Changed makes Run read the claims again. It does not block.
func (m *Meter) Changed() { m.changed.Fire() }

// Run counts until the context ends.
func (m *Meter) Run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-m.o.Scans.Scanned():
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
	if newest, err := m.o.Instance.Newest(); err != nil || !newest {
		return err
	}
	plans, incomplete, err := m.o.Records.Held()
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
	o := usage.Observation{Snapshot: m.o.Scans.Snapshot(), Plans: m.plans}
	var known bool
	if o.Served, known = m.o.DevicePlugins.GPUs(); !known {
		return errors.New("the GPUs that device plugins serve are unknown")
	}
	if m.o.Samples != nil {
		o.Activity = activityOf(sampler.Uses(m.o.Samples.Snapshot(), m.plans))
	}
	m.account.Advance(boot, at, o)
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
	if newest, err := m.o.Instance.Newest(); err != nil || !newest {
		return usage.Account{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.loaded || m.advance() != nil {
		return usage.Account{}, false
	}
	return m.account.Clone(), true
}
