// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package tracker remembers the faults of GPUs across restarts of the plugin.
//
// A missing record of a GPU with faults means that an administrator cleared them. The driver's answers decide again, so
// the faults that it still reports come back with the next poll.
//
// Only GPUs with faults have a record. So a GPU with an unreadable one has a fault of the state "unreadable-record". A
// second failed read replaces the record by that fault, which ends with the boot, as most others do.
//
// Trap. During an upgrade two plugins poll the same GPUs. Each decides for itself and writes under a lock; they agree
// after two polls.
package tracker

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

// Setting is the name of the records.
const Setting = "health"

// lockLimit limits the wait for the other plugin's write. After it the next poll tries again.
const lockLimit = 5 * time.Second

// Tracker implements inventory.Health. It is safe for concurrent use.
type Tracker struct {
	host    *host.Host
	records *record.GPUs
	lock    string
	reports notify.Reporter
	o       health.Settings

	mu   sync.Mutex
	gpus map[string]*tracked // By PCI address.
}

type tracked struct {
	uuid string
	gpu  health.GPU
	// stored are the recorded faults; stale means that the record differs from them.
	stored []gpu.Fault
	stale  bool
	// unread means that the first read of the record failed.
	unread bool
}

// unknown stands for the faults in an unreadable record.
var unknown = func() gpu.Fault {
	s, _ := health.Lookup(health.UnreadableRecord)
	return gpu.Fault{State: s.Name, Cause: s.Cause}
}()

// New returns a Tracker that keeps records under the lock file, and reports errors of reading and writing them.
func New(h *host.Host, records *record.GPUs, lock string, reports notify.Reporter, o health.Settings) *Tracker {
	return &Tracker{host: h, records: records, lock: lock, reports: reports, o: o, gpus: map[string]*tracked{}}
}

// Poll implements inventory.Health.
func (t *Tracker) Poll(g gpu.GPU, r *health.Reading) health.GPU {
	return t.update(g, func(was health.GPU) health.GPU {
		if r == nil {
			return was.Failed()
		}
		return was.Poll(*r)
	})
}

// Refused notes whether the driver refuses to deliver XIDs of a GPU. The next Poll returns it.
func (t *Tracker) Refused(g gpu.GPU, refused bool) {
	t.update(g, func(was health.GPU) health.GPU { return was.Refused(refused) })
}

// Last returns the last answer about the GPU at a PCI address, and its UUID. ok is false before the first one.
func (t *Tracker) Last(address string) (uuid string, r health.Reading, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.gpus[address]
	if k == nil {
		return "", health.Reading{}, false
	}
	r, ok = k.gpu.Last()
	return k.uuid, r, ok
}

// Event applies an XID of a GPU, of which the PCI address and the UUID must be set. The next Poll returns its faults.
func (t *Tracker) Event(g gpu.GPU, code uint64) {
	t.update(g, func(was health.GPU) health.GPU { return was.Event(code, t.o) })
}

// update changes a GPU and its record.
func (t *Tracker) update(g gpu.GPU, change func(health.GPU) health.GPU) health.GPU {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.gpus[g.PCIAddress]
	if k == nil || k.uuid != g.UUID || k.unread {
		k = t.load(g, k)
		t.gpus[g.PCIAddress] = k
	}
	if len(k.stored) > 0 {
		if _, err := t.records.Get(g.PCIAddress); errors.Is(err, fs.ErrNotExist) {
			k.gpu, k.stored = k.gpu.Cleared(), nil
		}
	}
	k.gpu = change(k.gpu)
	if faults := k.gpu.Faults(); k.stale || !slices.Equal(k.stored, faults) {
		if err := t.store(g, faults); err != nil {
			t.reports.Report(&claimerror.Error{
				Reason: claimerror.HostFailure, Attempt: "remember the faults of GPU " + g.PCIAddress, Cause: err,
				Remedy: "the plugin retries, and knows the faults until it restarts; check the node's disk",
			})
		} else {
			k.stored, k.stale, k.unread = faults, false, false
		}
	}
	return k.gpu
}

// NoDriver implements inventory.Health: faults of the driver's work end with the driver.
func (t *Tracker) NoDriver() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.gpus {
		k.gpu = k.gpu.Restarted()
	}
}

// load reads the record of a GPU. was is the GPU before, or nil.
func (t *Tracker) load(g gpu.GPU, was *tracked) *tracked {
	k := &tracked{uuid: g.UUID}
	var since []gpu.Fault // those found while the record was unreadable
	again := was != nil && was.uuid == g.UUID && was.unread
	if again {
		since = slices.DeleteFunc(slices.Clone(was.gpu.Faults()), func(f gpu.Fault) bool { return f == unknown })
	}
	r, err := t.records.Get(g.PCIAddress)
	boot, bootErr := t.host.BootID()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return k
	case err != nil && again:
		was.stale, was.unread = true, false
		return was
	case err != nil:
		k.gpu, k.unread = health.New([]gpu.Fault{unknown}), true
		k.stored = k.gpu.Faults() // One failed read does not replace the record.
		t.reports.Report(&claimerror.Error{
			Reason:  claimerror.RecordUnreadable,
			Attempt: "remember the faults of GPU " + g.PCIAddress,
			Cause:   err,
			Remedy: "the GPU is unavailable until the next scan reads the record, or else until the node reboots or " +
				"kubectl gpu clear; check the node's disk",
		})
	case r.UUID != g.UUID:
		k.stale = true
	default:
		k.stored, k.gpu = r.Faults, health.New(slices.Concat(r.Faults, since))
		if bootErr == nil && r.BootID != boot {
			k.gpu = k.gpu.Restarted()
		}
	}
	return k
}

// Clear removes the record of a GPU, and returns its faults. Running plugins notice it with their next poll. It needs
// no Tracker, so that another process can call it. An unreadable record is removed too.
func Clear(h *host.Host, records *record.GPUs, lock, address string) ([]gpu.Fault, error) {
	r, err := records.Get(address)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil && !errors.Is(err, record.ErrUnreadable):
		return nil, err
	}
	held, err := acquire(h, lock)
	if err != nil {
		return nil, err
	}
	defer held.Release()
	return r.Faults, records.Remove(address)
}

func acquire(h *host.Host, lock string) (*host.Lock, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockLimit)
	defer cancel()
	return h.Lock(ctx, lock, 0)
}

func (t *Tracker) store(g gpu.GPU, faults []gpu.Fault) error {
	lock, err := acquire(t.host, t.lock)
	if err != nil {
		return err
	}
	defer lock.Release()
	if len(faults) == 0 {
		return t.records.Remove(g.PCIAddress)
	}
	boot, err := t.host.BootID()
	if err != nil {
		return err
	}
	return t.records.Put(record.GPU{BootID: boot, PCIAddress: g.PCIAddress, UUID: g.UUID, Faults: faults})
}
