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
	"os"
	"path/filepath"
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
	// set has the limits that this process has set, or tried to set since the last tick, by cgroup and GPU.
	set    map[target]uint64
	failed []target
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
		set: map[target]uint64{}, busy: map[string]bool{}}
}

// Run answers requests until the context ends. First it sets the limits of those that an earlier process answered, too.
func (l *Limiter) Run(ctx context.Context) {
	l.watch(ctx)
	tick := time.NewTicker(scanInterval)
	defer tick.Stop()
	for {
		l.serve(ctx)
		select {
		case <-ctx.Done():
			return
		case <-l.changes:
		case <-tick.C:
			for _, at := range l.failed {
				delete(l.set, at)
			}
			l.failed = nil
		}
	}
}

// watch notices changes of the directory. Without it the requests are still looked at, rarely.
func (l *Limiter) watch(ctx context.Context) {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		err = l.files.Make()
	}
	if err == nil {
		err = w.Add(l.files.Dir())
	}
	if err != nil {
		l.reports.Report(failure(memorylimit.Request{}, fmt.Errorf("watch %s: %w", l.files.Dir(), err),
			fmt.Sprintf("limits of new containers come up to %s late: check the node's limits of inotify, and "+
				"restart the plugin", scanInterval)))
		return
	}
	go func() {
		defer func() { _ = w.Close() }()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.Events:
			case err := <-w.Errors:
				klog.FromContext(ctx).Error(err,
					"Some changes of the requests of memory limits were not seen; all are looked at again")
			}
			l.changes.Fire()
		}
	}()
}

// serve answers the requests whose limits were set, and sets those that are not set yet, in a goroutine for each GPU.
func (l *Limiter) serve(ctx context.Context) {
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
	for at, one := range sums {
		if l.set[at] == one.bytes || l.busy[at.address] {
			continue
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

// finish answers the requests of a limit. A driver without limits, for example an older one since the claim was
// prepared, keeps no container from its start: the share had no such limit before.
func (l *Limiter) finish(ctx context.Context, done limit, err error) {
	if err == nil {
		err = done.err
	}
	first := done.requests[0]
	var refused error
	switch {
	case err == nil:
	case nvml.Unavailable(err):
		l.reports.Report(failure(first, err,
			"its container runs without a limit of its memory, because the driver has none: "+
				"install the one that the claim was prepared with, or delete the pod"))
	default:
		refused = failure(first, err,
			"its container does not start: run nvidia-smi on the node, and check that its driver and the plugin "+
				"see the cgroups in "+l.cgroups)
		l.reports.Report(refused)
	}
	for _, r := range done.requests {
		if err := l.files.Answer(r, refused); err != nil {
			klog.FromContext(ctx).Error(err, "Answering a request of a memory limit failed; it is answered again",
				"claim", r.Claim)
			refused = err
		}
	}
	l.set[done.target] = done.bytes
	if refused != nil {
		l.failed = append(l.failed, done.target)
	}
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
