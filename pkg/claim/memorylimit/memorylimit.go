// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package memorylimit limits the memory of containers with a share of a GPU, by whichever strategy it is shared. All
// processes of a container together have at most its share. Drivers since CUDA 13.4 keep such limits for cgroups.
//
// A hook asks for the limit while the container is created, because its cgroup does not exist before. A cgroup takes
// its limit with it when it ends, so there is nothing to undo.
package memorylimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/internal/memorylimit/requests"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// scanInterval is the time after which requests are looked at without an event. It removes those of containers that
// ended, and repeats what failed.
const scanInterval = 30 * time.Second

// Limiter answers requests of containers.
type Limiter struct {
	files    *requests.Files
	sessions *sessionpool.Pool
	reports  notify.Reporter
	// cgroups is the node's directory of cgroups of version 2.
	cgroups string

	attempts host.Attempts[gpuWork]
	// busy are the GPUs whose attempt has not been looked at, by address.
	busy map[string]bool
	// changes fires when requests or answers of GPUs have come.
	changes notify.Trigger
	// interval is scanInterval.
	interval time.Duration
	// watcher is nil while there can be none; unwatched is the reason.
	watcher   *fsnotify.Watcher
	unwatched string

	mu sync.Mutex
	// set has the limits that this process has set, or tried to set.
	set map[target]outcome
}

// outcome is the result of an attempt to set a limit.
type outcome struct {
	bytes   uint64
	problem string
	// refused means that the container does not start; due that the limit is to be set again.
	refused, due bool
}

// target is a container's cgroup and the PCI address of a GPU.
type target struct{ cgroup, address string }

// gpuWork has the limits of one GPU, and then what became of them.
type gpuWork struct {
	uuid   string
	limits []limit
}

type limit struct {
	target
	bytes    uint64
	requests []memorylimit.Request
	err      error
}

// New makes a Limiter of the containers below a directory of cgroups.
func New(files *requests.Files, sessions *sessionpool.Pool, cgroups string, reports notify.Reporter) *Limiter {
	return &Limiter{files: files, sessions: sessions, cgroups: cgroups, reports: reports, changes: notify.NewTrigger(),
		interval: scanInterval, set: map[target]outcome{}, busy: map[string]bool{}}
}

// Run answers requests until the context ends. First it sets the limits of those that an earlier process answered, too.
func (l *Limiter) Run(ctx context.Context) {
	defer func() {
		if l.watcher != nil {
			_ = l.watcher.Close()
		}
	}()
	tick := time.NewTicker(l.interval)
	defer tick.Stop()
	for {
		l.serve(ctx)
		select {
		case <-ctx.Done():
			return
		case <-l.changes:
		case <-tick.C:
			l.again(func(_ target, o outcome) bool { return o.refused })
		}
	}
}

// again makes limits due.
func (l *Limiter) again(due func(target, outcome) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, o := range l.set {
		o.due = o.due || due(at, o)
		l.set[at] = o
	}
}

// Setting is the limits as a setting that GPUs lose, as in a reload of the driver or a reset. They end with their
// cgroups, so there is nothing to restore.
func (l *Limiter) Setting() executor.Setting {
	return executor.Setting{Restorer: l, Records: l, After: -1}
}

// Addresses returns the PCI addresses of the GPUs with limits.
func (l *Limiter) Addresses() ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	gpus := map[string]bool{}
	for at := range l.set {
		gpus[at.address] = true
	}
	return slices.Sorted(maps.Keys(gpus)), nil
}

// NeededBy implements executor.Restorer.
func (l *Limiter) NeededBy(d plan.Device) bool { return d.Sharing.ContainerLimit > 0 }

// Restore implements executor.Restorer.
func (l *Limiter) Restore(context.Context, gpu.GPU) error { return nil }

// Keep implements executor.Keeper. The limits of the GPU are read, and those that it lost are set, by Run.
func (l *Limiter) Keep(_ context.Context, g gpu.GPU) error {
	l.again(func(at target, _ outcome) bool { return at.address == g.PCIAddress })
	l.changes.Fire()
	return nil
}

// watch makes the directory, without which no container with a share starts, and notices its changes. Without a watcher
// the requests are still looked at, rarely.
func (l *Limiter) watch(ctx context.Context) {
	err := l.files.Make()
	if err == nil && l.watcher == nil {
		l.watcher, err = fsnotify.NewWatcher()
		if err == nil {
			go l.forward(ctx, l.watcher)
		}
	}
	if err == nil {
		err = l.watcher.Add(l.files.Dir()) // Again, because the directory can be a new one.
	}
	if err == nil {
		l.unwatched = ""
		return
	}
	if l.unwatched != err.Error() {
		l.unwatched = err.Error()
		l.reports.Report(failure(memorylimit.Request{}, fmt.Errorf("watch %s: %w", l.files.Dir(), err),
			fmt.Sprintf("limits of new containers come up to %s late: check the node's disk and its limits of inotify",
				scanInterval)))
	}
}

func (l *Limiter) forward(ctx context.Context, w *fsnotify.Watcher) {
	for events, errs := w.Events, w.Errors; ; l.changes.Fire() {
		select {
		case _, open := <-events:
			if !open {
				return
			}
		case err, open := <-errs:
			if !open {
				return
			}
			klog.FromContext(ctx).Error(err,
				"Some changes of the requests of memory limits were not seen; all are looked at again")
		}
	}
}

// serve answers the requests whose limits were set, and sets those that are not set yet, in a goroutine for each GPU.
func (l *Limiter) serve(ctx context.Context) {
	l.watch(ctx)
	ended, _ := l.attempts.Results()
	for _, a := range ended {
		delete(l.busy, a.Item.limits[0].address)
		for _, done := range a.Item.limits {
			l.finish(ctx, done, a.Err)
		}
	}
	asked, err := l.files.List(l.cgroups)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Reading the requests of memory limits failed; they are read again")
	}
	open := l.open(asked)
	for address := range open {
		l.busy[address] = true
	}
	set := l.attempts.Begin(open, l.work)
	go func() {
		for range set {
			l.changes.Fire()
		}
	}()
}

// open returns the limits to set, by GPU, but for busy ones. It forgets those of containers that have ended.
func (l *Limiter) open(asked []memorylimit.Request) map[string]gpuWork {
	sums, uuids := map[target]*limit{}, map[string]string{}
	for _, r := range asked {
		at := target{r.Cgroup, r.Address}
		if sums[at] == nil {
			sums[at] = &limit{target: at}
		}
		sums[at].bytes += r.Bytes
		sums[at].requests = append(sums[at].requests, r)
		uuids[r.Address] = r.UUID
	}
	out := map[string]gpuWork{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, one := range sums {
		if o := l.set[at]; o.bytes == one.bytes && !o.due || l.busy[at.address] {
			continue
		}
		if o, known := l.set[at]; known {
			o.due = false
			l.set[at] = o
		}
		work := out[at.address]
		work.uuid = uuids[at.address]
		work.limits = append(work.limits, *one)
		out[at.address] = work
	}
	for at := range l.set {
		if sums[at] == nil {
			delete(l.set, at)
		}
	}
	return out
}

// work sets the limits of a GPU. It never lowers one: a container gets no smaller share, but one of its requests can be
// unreadable.
func (l *Limiter) work(w *gpuWork) error {
	return l.sessions.With(w.limits[0].address, w.uuid, func(g *sessionpool.GPU) error {
		for i := range w.limits {
			one := &w.limits[i]
			cgroup := filepath.Join(l.cgroups, one.cgroup)
			if now, err := g.MemoryLimit(cgroup); err == nil && now >= one.bytes {
				continue
			}
			if one.err = g.SetMemoryLimit(cgroup, one.bytes); one.err != nil {
				if _, err := os.Lstat(cgroup); errors.Is(err, fs.ErrNotExist) {
					one.err = nil // The container has ended meanwhile.
				}
			}
		}
		return nil
	})
}

// finish answers the requests of a limit, unless they have that answer. A driver without limits, for example an older
// one since the claim was prepared, keeps no container from its start: the share had no such limit before.
func (l *Limiter) finish(ctx context.Context, done limit, err error) {
	if err == nil {
		err = done.err
	}
	now := outcome{bytes: done.bytes}
	if err != nil {
		now.problem, now.refused = err.Error(), !nvml.Unavailable(err)
	}
	was := l.note(done.target, now) // Before the answer, after which the limit can be lost.
	if was.due = false; was != now {
		if err := l.answer(ctx, done, err, now.refused); err != nil {
			now.problem, now.refused = err.Error(), true // It is answered again.
			l.note(done.target, now)
		}
	}
}

func (l *Limiter) note(at target, now outcome) (was outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was = l.set[at]
	now.due = was.due // It can be lost again during the attempt.
	l.set[at] = now
	return was
}

func (l *Limiter) answer(ctx context.Context, done limit, err error, refuses bool) error {
	first := done.requests[0]
	var refused error
	switch {
	case refuses:
		refused = failure(first, err,
			"its container does not start: run nvidia-smi on the node, and check that its driver and the plugin "+
				"see the cgroups in "+l.cgroups)
		l.reports.Report(refused)
	case err != nil:
		l.reports.Report(failure(first, err,
			"its container runs without a limit of its memory, because the driver has none: "+
				"install the one that the claim was prepared with, or delete the pod"))
	}
	var errs []error
	for _, r := range done.requests {
		if err := l.files.Answer(r, refused); err != nil {
			klog.FromContext(ctx).Error(err, "Answering a request of a memory limit failed; it is answered again",
				"claim", r.Claim)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func failure(r memorylimit.Request, cause error, remedy string) error {
	return &claimerror.Error{
		Reason:  claimerror.HostFailure,
		Attempt: "limit the memory of a container",
		Claim:   r.Claim,
		UID:     r.ClaimUID,
		Device:  r.Device,
		Cause:   cause,
		Remedy:  remedy,
	}
}
