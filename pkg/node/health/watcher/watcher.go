// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package watcher waits for the XIDs of a node's GPUs.
//
// An XID is passed on and causes polls of the GPUs' health. Missed XIDs do no harm to the health, because polls decide.
//
// Traps. The GPUs of a new claim are registered within waitLimit, because NVML cannot end a wait early and shorter
// waits cost more at rest. XIDs of this second are not counted; a container and its CUDA context rarely start sooner.
// An event set keeps an NVML session open, which hides new GPUs from scans and keeps the driver loaded. So it exists
// only while a claim is prepared, and is made again after the kernel's list of GPUs has changed. A GPU with clients can
// refuse a reset or another MIG mode. So a set has only the GPUs of claims, and ends during switches of MIG modes. A
// lost GPU makes each wait return at once. A GPU that hangs is left out of sets. If a call for all GPUs hangs, nothing
// but the XIDs stops.
package watcher

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
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
)

const (
	// waitLimit limits a wait, and so the time until another set is made. The Prepare of a partition waits for that if
	// the set has its GPU and the MIG mode must be switched. A wait costs a millisecond of CPU time.
	waitLimit = time.Second
	// firstPause and longestPause limit the pauses between event sets. A set that lasted longer begins with the first.
	firstPause, longestPause = time.Second, time.Minute
)

// pollPauses are the pauses between the polls after an XID: 1, 5 and 15 s after it. The first one limits polls to one a
// second, however many XIDs there are.
var pollPauses = []time.Duration{time.Second, 4 * time.Second, 10 * time.Second}

// Options configures a run; all fields are required.
type Options struct {
	Library nvml.Library
	// ProcRoot and SysRoot are the machine's /proc and /sys.
	ProcRoot, SysRoot string
	// Locks are the locks of GPUs.
	Locks *Locks
	// Records are the prepared claims, whose GPUs are watched.
	Records  plan.Held
	Receiver Receiver
	// XIDs requests the polls that follow an XID, also for one that no event set received.
	XIDs notify.Trigger
	// Poll requests a poll of the GPUs' health.
	Poll notify.Trigger
}

// Receiver receives XIDs.
type Receiver interface {
	// Event receives each XID, up to some thousands a second.
	Event(e Event)
	// Refused receives for each GPU of a new event set whether it has no XIDs, as in a virtual machine without them.
	Refused(g gpu.GPU, refused bool)
}

// Event is an XID of a GPU.
type Event struct {
	// GPU has the PCI address and the UUID only.
	GPU gpu.GPU
	XID uint64
	// GPUInstance and ComputeInstance name the partition at fault; they are -1 for the whole GPU.
	GPUInstance, ComputeInstance int
}

// Key identifies repetitions of an Event.
type Key struct {
	UUID            string
	XID             uint64
	GPUInstance     int
	ComputeInstance int
}

func (e Event) Key() Key { return Key{e.GPU.UUID, e.XID, e.GPUInstance, e.ComputeInstance} }

// Locks keeps GPUs out of event sets.
type Locks struct {
	changed notify.Trigger

	mu sync.Mutex
	// locks counts the holders of Lock, by PCI address.
	locks map[string]int
	// open is closed with the event set, and nil without one. set has its GPUs.
	open chan struct{}
	set  []string
}

func NewLocks() *Locks { return &Locks{changed: notify.NewTrigger(), locks: map[string]int{}} }

// Watcher waits for XIDs.
type Watcher struct {
	*Locks
	o Options
	// asked are the GPUs of which a set asks whether they answer, by PCI address.
	asked host.Attempts[asked]
}

func New(o Options) *Watcher { return &Watcher{Locks: o.Locks, o: o} }

// Changed is called after a claim was prepared or released. It does not block.
func (w *Watcher) Changed() { w.changed.Fire() }

// Run waits for XIDs until the context ends. It does not wait for a call of NVML that hangs.
func (w *Watcher) Run(ctx context.Context) {
	go w.poll(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.watch(ctx)
	}()
	select {
	case <-ctx.Done():
	case <-ended:
	}
}

// poll requests a poll at once after an XID, and some later.
func (w *Watcher) poll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.o.XIDs:
		}
		w.o.Poll.Fire()
		for _, pause := range pollPauses {
			due := time.After(pause)
			if !sleep(ctx, pollPauses[0]) {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-w.o.XIDs:
				w.o.XIDs.Fire() // It begins again.
			case <-due:
				w.o.Poll.Fire()
				continue
			}
			break
		}
	}
}

// watch makes one event set after the other.
func (w *Watcher) watch(ctx context.Context) {
	last := ""
	for pause := time.Duration(0); sleep(ctx, pause); {
		gpus := w.begin()
		if len(gpus) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-w.changed:
				pause = 0
				continue
			}
		}
		began, listed := time.Now(), w.listed()
		err := host.Guard(func() error { return w.wait(ctx, gpus) })
		w.end()
		same := w.listed() == listed
		switch {
		case err == nil && same:
			pause = 0 // Other claims.
		case time.Since(began) > longestPause:
			pause = firstPause
		default:
			pause = min(max(2*pause, firstPause), longestPause)
		}
		text := fmt.Sprint(err)
		if err != nil && ctx.Err() == nil && text != last {
			klog.FromContext(ctx).Info("XIDs cannot be read; trying again. Polls of the GPUs' health continue", "err",
				err)
		}
		last = text
		if err != nil || !same {
			w.o.Poll.Fire() // Without a set, it sees GPUs that are lost or new.
		}
	}
}

// ofClaims returns the GPUs of prepared claims, as far as they are known.
func (w *Watcher) ofClaims() []string {
	plans, _, _ := w.o.Records.Held() // The engine reports unreadable records.
	held := sets.Set[string]{}
	for _, p := range plans {
		held.Insert(p.HeldGPUs()...)
	}
	return sets.List(held)
}

// gpus returns the GPUs that an event set should have: those of claims without the locked ones. The caller holds w.mu.
func (w *Watcher) gpus(ofClaims []string) []string {
	return slices.DeleteFunc(slices.Clone(ofClaims), func(address string) bool { return w.locks[address] > 0 })
}

// current reports whether an event set has the right GPUs.
func (w *Watcher) current(set []string) bool {
	ofClaims := w.ofClaims()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Equal(w.gpus(ofClaims), set)
}

// begin notes an event set of the returned GPUs, if there are any.
func (w *Watcher) begin() []string {
	ofClaims := w.ofClaims()
	w.mu.Lock()
	defer w.mu.Unlock()
	gpus := w.gpus(ofClaims)
	if len(gpus) == 0 {
		return nil
	}
	w.open, w.set = make(chan struct{}), gpus
	return gpus
}

func (w *Watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.open)
	w.open, w.set = nil, nil
}

// Lock keeps a GPU out of event sets until Unlock, because a GPU with clients can refuse to switch its MIG mode or to
// be reset. It waits for the end of a set with the GPU, but not for a call of NVML that hangs. Several callers can hold
// it.
func (l *Locks) Lock(address string) {
	l.mu.Lock()
	l.locks[address]++
	open := l.open
	if !slices.Contains(l.set, address) {
		open = nil
	}
	l.mu.Unlock()
	if open == nil {
		return
	}
	l.changed.Fire()
	select {
	case <-open:
	case <-time.After(2 * waitLimit):
	}
}

func (l *Locks) Unlock(address string) {
	l.mu.Lock()
	if l.locks[address]--; l.locks[address] == 0 {
		delete(l.locks, address)
	}
	l.mu.Unlock()
	l.changed.Fire()
}

// wait passes on XIDs of GPUs until another event set is needed, or a call fails.
func (w *Watcher) wait(ctx context.Context, addresses []string) (err error) {
	listed := w.listed()
	session, err := w.o.Library.Open()
	if err != nil {
		return fmt.Errorf("open NVML: %w", err)
	}
	devices, gpus, late, err := w.readable(session, addresses)
	defer func() {
		if late == nil {
			err = errors.Join(err, session.Close())
			return
		}
		go func() {
			for range late { // It is closed after the last answer.
			}
			_ = session.Close()
		}()
	}()
	if err != nil {
		return err
	}
	set, err := session.Events(devices)
	for n, g := range gpus {
		switch {
		case err == nil:
			w.o.Receiver.Refused(g, nvml.Unavailable(set.Refused()[n]))
		case nvml.Unavailable(err):
			w.o.Receiver.Refused(g, true)
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	began, limit, pass := time.Now(), waitLimit, waitLimit
	for checked := began; ctx.Err() == nil; {
		event, err := set.Wait(limit)
		if err != nil && !errors.Is(err, nvml.Timeout) {
			return err
		}
		if err == nil {
			if event.Device >= 0 && event.Device < len(gpus) {
				w.o.Receiver.Event(Event{gpus[event.Device], event.XID, event.GPUInstance, event.ComputeInstance})
			}
			w.o.XIDs.Fire()
			if time.Since(checked) < pass {
				continue // A storm of XIDs does not wait for files.
			}
		}
		if limit < waitLimit {
			return nil
		}
		checked = time.Now()
		changed := false
		select {
		case <-w.changed:
			changed = !w.current(addresses)
		default:
		}
		// Another set may have GPUs that are new, or that answer again after a reset. This one can have more XIDs,
		// which would be lost with it.
		if changed || w.listed() != listed || len(gpus) < len(addresses) && time.Since(began) >= longestPause {
			limit, pass = 0, waitLimit/10
		}
	}
	return nil
}

// asked is a GPU that is asked in a session.
type asked struct {
	session nvml.Session
	gpu     gpu.GPU
	device  nvml.Device
}

// ask finds the GPU, and registers it for a moment: it must not be a call for all GPUs that hangs.
func (a *asked) ask() (err error) {
	if a.device, err = a.session.DeviceAt(a.gpu.PCIAddress); err != nil {
		return err
	}
	if a.gpu.UUID, err = a.device.UUID(); err != nil {
		return err
	}
	if set, err := a.session.Events([]nvml.Device{a.device}); err == nil {
		return set.Close()
	}
	return nil // The set says which GPUs refuse.
}

// answerLimit limits the wait for the answers of GPUs.
const answerLimit = 5 * time.Second

// readable returns the GPUs that answer. A set with a lost GPU would not wait. late is closed after the last answer, if
// readable did not wait for it.
func (w *Watcher) readable(
	session nvml.Session, addresses []string,
) (devices []nvml.Device, gpus []gpu.GPU, late <-chan struct{}, err error) {
	questions := map[string]asked{}
	for _, address := range addresses {
		questions[address] = asked{session: session, gpu: gpu.GPU{PCIAddress: address}}
	}
	answers, limit := w.asked.Begin(questions, (*asked).ask), time.After(answerLimit)
	for open := true; open; {
		select {
		case _, open = <-answers:
		case <-limit:
			late, open = answers, false
		}
	}
	ended, _ := w.asked.Results()
	slices.SortFunc(ended, func(a, b host.Attempt[asked]) int {
		return cmp.Compare(a.Item.gpu.PCIAddress, b.Item.gpu.PCIAddress)
	})
	for _, a := range ended {
		switch {
		case a.Item.session != session: // It answered too late for its set.
		case a.Err != nil:
			err = a.Err
		default:
			devices, gpus = append(devices, a.Item.device), append(gpus, a.Item.gpu)
		}
	}
	switch {
	case len(devices) > 0:
		err = nil
	case err == nil:
		err = fmt.Errorf("the GPUs of claims do not answer: %w", nvml.Timeout)
	}
	return devices, gpus, late, err
}

// listed returns the kernel driver's GPUs and their bindings. A GPU can leave and come back while NVML is opened. The
// names are then the same again. The session lacks the GPU, as do all scans until it is closed.
func (w *Watcher) listed() string {
	entries, _ := os.ReadDir(filepath.Join(w.o.ProcRoot, "driver/nvidia/gpus"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ") + "\n" + inventory.Bindings(w.o.SysRoot)
}

// sleep returns false if the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
