// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// Claims tells which claims are prepared; *devicestate.Engine is the one.
type Claims interface {
	// Held lists the plans of all records; incomplete says that some are not known.
	Held() (plans []plan.Plan, incomplete bool, err error)
	// WithGPULock calls do with the lock of a GPU, and the plans that have a part of it.
	WithGPULock(ctx context.Context, address string, do func([]plan.Plan) error) error
}

// Watcher watches the daemons: it reports one that died to its claims, and ends those that no claim needs.
type Watcher struct {
	x       *Executor
	claims  Claims
	report  func(error)
	version string
	// restarts are those of each daemon, reported the wrong compute mode of each GPU, by device name.
	restarts map[string]int
	reported map[string]nvml.ComputeMode
}

// NewWatcher makes a Watcher of an Executor's daemons. The report must not block.
func NewWatcher(x *Executor, claims Claims, report func(error)) *Watcher {
	return &Watcher{x: x, claims: claims, report: report}
}

// retryInterval is between scans when the supervisor is away.
const retryInterval = 5 * time.Second

// Run watches until the context ends.
func (w *Watcher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.scan(ctx); err == nil {
			continue
		}
		// The supervisor is away: it takes up its daemons by itself when it is back.
		w.version = ""
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// scan waits for a change of the daemons, half a minute at the most, and acts on it.
func (w *Watcher) scan(ctx context.Context) error {
	list, err := w.x.daemons.List(ctx, w.version)
	if err != nil {
		return err
	}
	plans, incomplete, err := w.claims.Held()
	if err != nil {
		return err
	}
	w.version = list.Version
	w.reportRestarts(list.Daemons, plans)
	for _, s := range list.Daemons {
		if len(clients(plans, s.Name)) == 0 && !incomplete {
			w.endUnneeded(ctx, s)
		}
	}
	w.checkModes(ctx, plans)
	return nil
}

func clients(plans []plan.Plan, device string) []plan.Claim {
	var out []plan.Claim
	for _, p := range plans {
		if slices.ContainsFunc(p.Devices, func(d plan.Device) bool { return d.Name == device && d.MPS() && !d.Admin }) {
			out = append(out, p.Claim)
		}
	}
	return out
}

// reportRestarts reports each daemon that died since the last scan to its claims.
func (w *Watcher) reportRestarts(daemons []mpsd.Status, plans []plan.Plan) {
	restarts := map[string]int{}
	for _, s := range daemons {
		restarts[s.Name] = s.Restarts
		if s.Restarts <= w.restarts[s.Name] {
			continue
		}
		for _, c := range clients(plans, s.Name) {
			why := "its MPS daemon ended"
			if s.Problem != "" {
				why += " (" + s.Problem + ")"
			}
			w.report(&claimerror.Error{
				Reason: claimerror.MPSDaemonDied, Attempt: "serve shares", Claim: c.String(), Device: s.Name,
				Cause:  errors.New(why + " and is started again; what ran on it has lost the device"),
				Remedy: "restart the processes that use it; the log of the node's mps-supervisor pod says more",
			})
		}
	}
	w.restarts = restarts
}

// endUnneeded ends a daemon of which no record knows: one of a claim that was released while the supervisor was away.
func (w *Watcher) endUnneeded(ctx context.Context, s mpsd.Status) {
	named, err := gpu.ParseName(s.Name)
	if err != nil {
		_ = w.x.daemons.Stop(ctx, s.Name) // No device of this driver's: tried again with the next scan.
		return
	}
	err = w.claims.WithGPULock(ctx, named.PCIAddress, func(plans []plan.Plan) error {
		if len(clients(plans, s.Name)) > 0 {
			return nil
		}
		if err := w.x.daemons.Stop(ctx, s.Name); err != nil {
			return err
		}
		if named.Kind != gpu.KindGPU {
			return nil
		}
		return w.x.restore(plan.Device{Name: s.Name, PCIAddress: named.PCIAddress, UUID: s.UUID, Kind: named.Kind})
	})
	if err != nil {
		w.report(&claimerror.Error{
			Reason: claimerror.DeviceNotReady, Attempt: "end the MPS daemon that no claim needs", Device: s.Name,
			Cause: err, Remedy: "it is retried",
		})
	}
}

// checkModes reports GPUs whose compute mode changed under the shares: processes can bypass their daemon then.
func (w *Watcher) checkModes(ctx context.Context, plans []plan.Plan) {
	changed := map[string]nvml.ComputeMode{}
	for _, p := range plans {
		for _, d := range p.Devices {
			if _, done := changed[d.Name]; done || !d.MPS() || d.Kind != gpu.KindGPU || w.wrongMode(d) == nil {
				continue
			}
			// With the lock no claim of the GPU is being prepared or unprepared, which changes the mode too.
			_ = w.claims.WithGPULock(ctx, d.PCIAddress, func(now []plan.Plan) error {
				mode := w.wrongMode(d)
				if mode == nil || len(clients(now, d.Name)) == 0 {
					return nil
				}
				changed[d.Name] = *mode
				if last, ok := w.reported[d.Name]; ok && last == *mode {
					return nil
				}
				w.report(&claimerror.Error{
					Reason: claimerror.DeviceNotReady, Attempt: "share", Device: d.Name, Claim: p.Claim.String(),
					Cause:  fmt.Errorf("its compute mode was changed to %s, in which processes bypass the limits of their shares", *mode),
					Remedy: "set it back with nvidia-smi -c EXCLUSIVE_PROCESS",
				})
				return nil
			})
		}
	}
	w.reported = changed
}

// wrongMode returns the compute mode of a GPU, nil if it is the one that was set, or cannot be read now.
func (w *Watcher) wrongMode(d plan.Device) (wrong *nvml.ComputeMode) {
	r, err := w.x.modes.Get(d.PCIAddress)
	if err != nil || r.UUID != d.UUID {
		return nil
	}
	_ = w.x.withMode(d.UUID, func(_ nvml.Device, mode nvml.ComputeMode) error {
		if int(mode) != r.Set {
			wrong = &mode
		}
		return nil
	})
	return wrong
}
