// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// Claims lists the prepared claims. *devicestate.Engine implements it.
type Claims interface {
	plan.Held
	executor.Locker
}

// Watcher reports restarts and faults of daemons to their claims, and ends unneeded daemons.
type Watcher struct {
	x       *Executor
	claims  Claims
	reports notify.Reporter
	version string
	// checkLimit limits a scan's wait for the checks of compute modes, and for the end of each unneeded daemon.
	checkLimit time.Duration
	// losses has each daemon's of the last scan, by device name. It is nil before the first scan.
	losses map[string]losses

	// ends are the ends of unneeded daemons, checks those of compute modes, by device name.
	ends   host.Attempts[mpsd.Status]
	checks host.Attempts[check]

	mu sync.Mutex
	// reported holds each GPU's reported mode.
	reported map[string]nvml.ComputeMode
}

// check is the check of the compute mode of a claim's device.
type check struct {
	device plan.Device
	claim  plan.Claim
}

// NewWatcher returns a Watcher of an Executor's daemons.
func NewWatcher(x *Executor, claims Claims, reports notify.Reporter) *Watcher {
	return &Watcher{
		x: x, claims: claims, reports: reports, checkLimit: 10 * time.Second, reported: map[string]nvml.ComputeMode{},
	}
}

// retryInterval is the pause between scans while the supervisor is away.
const retryInterval = 5 * time.Second

// Run watches until the context ends.
func (w *Watcher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.Scan(ctx); err == nil {
			continue
		}
		// The supervisor is away. After its restart it restores its daemons by itself.
		w.version = ""
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// listLimit limits the wait for a list. The supervisor answers after half a minute if nothing changed.
const listLimit = 45 * time.Second

// Scan waits up to half a minute for a change of the daemons, and handles it.
func (w *Watcher) Scan(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	list, err := w.x.daemons.List(limited, w.version)
	if err != nil {
		return err
	}
	changed, err := w.x.modes.Addresses()
	if err != nil {
		return err
	}
	var plans []plan.Plan
	incomplete := false
	if len(list.Daemons)+len(changed) > 0 { // Otherwise no claim uses MPS, and all records need not be read.
		if plans, incomplete, err = w.claims.Held(); err != nil {
			return err
		}
	}
	w.version = list.Version
	w.reportLosses(list.Daemons, plans)
	unneeded := map[string]mpsd.Status{}
	for _, s := range list.Daemons {
		if len(clients(plans, s.Name)) == 0 && !incomplete {
			unneeded[s.Name] = s
		}
	}
	w.ends.Each(ctx, unneeded, func(s *mpsd.Status) error {
		w.endUnneeded(ctx, *s)
		return nil
	})
	w.checkModes(ctx, plans)
	return nil
}

func clients(plans []plan.Plan, device string) []plan.Claim {
	var out []plan.Claim
	for _, p := range plans {
		if slices.ContainsFunc(p.Devices, func(d plan.Device) bool { return d.Name == device && uses(d) && !d.Admin }) {
			out = append(out, p.Claim)
		}
	}
	return out
}

// losses counts what ended the processes of a daemon.
type losses struct{ restarts, faults int }

// reportLosses reports to claims that their processes lost the device since the last scan.
func (w *Watcher) reportLosses(daemons []mpsd.Status, plans []plan.Plan) {
	now := map[string]losses{}
	for _, s := range daemons {
		now[s.Name] = losses{s.Restarts, s.Faults}
		before := w.losses[s.Name]
		var why string
		switch {
		case w.losses == nil: // The first scan cannot know which claims a loss concerned.
			continue
		case s.Restarts > before.restarts && s.Problem != "":
			why = "its MPS daemon ended (" + s.Problem +
				"), and the supervisor restarts it; its processes lost the device"
		case s.Restarts > before.restarts:
			why = "its MPS daemon ended, and the supervisor restarts it; its processes lost the device"
		case s.Faults > before.faults:
			why = "an error of one of its processes, or the end of one while it computed, ended the work of all " +
				"processes that share it by MPS"
		default:
			continue
		}
		for _, c := range clients(plans, s.Name) {
			w.reports.Report(&claimerror.Error{
				Reason:  claimerror.MPSDaemonDied,
				Attempt: "serve shares",
				Claim:   c.String(),
				UID:     c.UID,
				Device:  s.Name,
				Cause:   errors.New(why),
				Remedy:  "restart the processes that use it; see the log of the node's mps-supervisor pod",
			})
		}
	}
	w.losses = now
}

// endUnneeded ends a daemon without a record, as of a claim that was released while the supervisor was away.
func (w *Watcher) endUnneeded(ctx context.Context, s mpsd.Status) {
	named, err := gpu.ParseName(s.Name)
	if err != nil {
		_ = w.x.stop(ctx, s.Name) // The name is not from this driver. The next scan retries.
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.checkLimit) // Work that hangs on a GPU keeps its lock.
	defer cancel()
	err = w.claims.WithGPULock(ctx, named.PCIAddress, func(plans []plan.Plan) error {
		if len(clients(plans, s.Name)) > 0 {
			return nil
		}
		return w.x.stop(ctx, s.Name)
	})
	if err != nil {
		w.reports.Report(&claimerror.Error{
			Reason: claimerror.DeviceNotReady, Attempt: "end the MPS daemon that no claim needs", Device: s.Name,
			Cause: err, Remedy: "the plugin retries",
		})
	}
}

// checkModes sets lost compute modes again and reports them, because processes can bypass the daemon meanwhile. Without
// persistence mode a GPU loses its mode when the last program closes it, and with it when the driver is reloaded or the
// GPU is reset. It checks GPUs concurrently and waits up to a limit, because NVML can hang on one. A check that hangs
// is not begun again.
func (w *Watcher) checkModes(ctx context.Context, plans []plan.Plan) {
	limited, cancel := context.WithTimeout(ctx, w.checkLimit)
	defer cancel()
	checks := map[string]check{}
	for _, p := range plans {
		for _, d := range p.Devices {
			if _, seen := checks[d.Name]; !seen && w.x.exclusive(d) {
				checks[d.Name] = check{d, p.Claim}
			}
		}
	}
	w.checks.Each(limited, checks, func(c *check) error {
		w.checkMode(ctx, c.device, c.claim)
		return nil
	})
}

func (w *Watcher) checkMode(ctx context.Context, d plan.Device, claim plan.Claim) {
	var failed *nvml.ComputeMode
	if w.wrongMode(d) != nil {
		// With the lock no claim of the GPU is being prepared or unprepared, which changes the mode too.
		_ = w.claims.WithGPULock(ctx, d.PCIAddress, func(now []plan.Plan) error {
			mode := w.wrongMode(d)
			if mode == nil || len(clients(now, d.Name)) == 0 {
				return nil
			}
			problem := &claimerror.Error{
				Reason:  claimerror.DeviceNotReady,
				Attempt: "keep the compute mode",
				Device:  d.Name,
				Claim:   claim.String(),
				UID:     claim.UID,
				Cause: fmt.Errorf("it was %s and was set again: processes could bypass their share's limits "+
					"meanwhile", *mode),
				Remedy: "enable the driver's persistence mode (nvidia-smi -pm 1), without which GPUs lose their " +
					"settings",
			}
			if err := w.x.setExclusive(d); err != nil {
				failed = mode
				problem.Cause = fmt.Errorf("it is %s: processes can bypass their share's limits: %w", *mode, err)
				problem.Remedy = "the plugin retries; set it with nvidia-smi -c EXCLUSIVE_PROCESS"
			}
			if failed == nil || w.isNew(d.Name, *failed) {
				w.reports.Report(problem)
			}
			return nil
		})
	}
	if failed == nil {
		w.mu.Lock()
		delete(w.reported, d.Name)
		w.mu.Unlock()
	}
}

// isNew stores the mode of a GPU that could not be set, and reports whether it differs from the previous one.
func (w *Watcher) isNew(device string, mode nvml.ComputeMode) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.reported[device]
	w.reported[device] = mode
	return !ok || last != mode
}

// wrongMode returns the compute mode of a GPU, nil if it is the one that was set, or cannot be read now.
func (w *Watcher) wrongMode(d plan.Device) (wrong *nvml.ComputeMode) {
	r, err := w.x.modes.Get(d.PCIAddress)
	if err != nil || r.UUID != d.UUID {
		return nil
	}
	_ = w.x.withMode(d, func(_ nvml.Device, mode nvml.ComputeMode) error {
		if int(mode) != r.Set {
			wrong = &mode
		}
		return nil
	})
	return wrong
}
