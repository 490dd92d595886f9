// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
)

// Keeper watches the daemons: it tells the claims of one that died, and ends those that no claim needs.
type Keeper struct {
	*Executor
	// Held are the plans of all records; blind says that some are not known.
	Held func() (plans []plan.Plan, blind bool, err error)
	// Alone calls do with the lock of a GPU, and the plans that have a part of it.
	Alone func(ctx context.Context, address string, do func([]plan.Plan) error) error
	// Report hears of what a person should know. It must not block.
	Report func(error)
	// Pause is between looks when the supervisor is away. Default: 5 s.
	Pause time.Duration

	version  string
	restarts map[string]int
	told     map[string]string
}

// Run watches until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	pause := k.Pause
	if pause == 0 {
		pause = 5 * time.Second
	}
	for ctx.Err() == nil {
		if err := k.Look(ctx); err == nil {
			continue
		}
		// The supervisor is away: it takes up its daemons by itself when it is back.
		k.version = ""
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Look waits for a change of the daemons, half a minute at the most, and acts on it.
func (k *Keeper) Look(ctx context.Context) error {
	list, err := k.Daemons.List(ctx, k.version)
	if err != nil {
		return err
	}
	plans, blind, err := k.Held()
	if err != nil {
		return err
	}
	k.version = list.Version
	k.tell(list.Daemons, plans)
	for _, s := range list.Daemons {
		if len(using(plans, s.Name)) == 0 && !blind {
			k.endUnneeded(ctx, s)
		}
	}
	k.modes(plans)
	return nil
}

// using are the claims that have a device by MPS.
func using(plans []plan.Plan, device string) []plan.Claim {
	var out []plan.Claim
	for _, p := range plans {
		for _, d := range p.Devices {
			if d.Name == device && d.MPS() && !d.Admin {
				out = append(out, p.Claim)
				break
			}
		}
	}
	return out
}

// tell the claims of each daemon that died since the last look.
func (k *Keeper) tell(daemons []mpsd.Status, plans []plan.Plan) {
	restarts := map[string]int{}
	for _, s := range daemons {
		restarts[s.Name] = s.Restarts
		before, known := k.restarts[s.Name]
		if known && s.Restarts <= before || !known && s.Restarts == 0 {
			continue
		}
		for _, c := range using(plans, s.Name) {
			why := "its MPS daemon ended"
			if s.Problem != "" {
				why += " (" + s.Problem + ")"
			}
			k.Report(&claimerror.Error{
				Reason: claimerror.MPSDaemonDied, Attempt: "serve shares", Claim: c.String(), Device: s.Name,
				Cause:  errors.New(why + " and is started again; what ran on it has lost the device"),
				Remedy: "restart the processes that use it; the log of the node's mps-supervisor pod says more",
			})
		}
	}
	k.restarts = restarts
}

// endUnneeded ends a daemon of which no record knows: one of a claim that was released while the supervisor was away.
func (k *Keeper) endUnneeded(ctx context.Context, s mpsd.Status) {
	named, err := gpu.ParseName(s.Name)
	if err != nil {
		_ = k.Daemons.Stop(ctx, s.Name) // No device of this driver's: tried again with the next look.
		return
	}
	err = k.Alone(ctx, named.PCIAddress, func(plans []plan.Plan) error {
		if len(using(plans, s.Name)) > 0 {
			return nil
		}
		if err := k.Daemons.Stop(ctx, s.Name); err != nil {
			return err
		}
		if named.Kind != gpu.KindGPU {
			return nil
		}
		return k.restore(plan.Device{Name: s.Name, PCIAddress: named.PCIAddress, UUID: s.UUID, Kind: named.Kind})
	})
	if err != nil {
		k.Report(&claimerror.Error{
			Reason: claimerror.DeviceNotReady, Attempt: "end the MPS daemon that no claim needs", Device: s.Name,
			Cause: err, Remedy: "it is retried",
		})
	}
}

// modes reports GPUs whose compute mode somebody changed under the shares: processes can pass their daemon by then.
func (k *Keeper) modes(plans []plan.Plan) {
	told := map[string]string{}
	for _, p := range plans {
		for _, d := range p.Devices {
			if !d.MPS() || d.Kind != gpu.KindGPU || told[d.Name] != "" {
				continue
			}
			r, err := k.Modes.Get(d.PCIAddress)
			if err != nil || r.UUID != d.UUID {
				continue
			}
			var mode nvml.ComputeMode
			err = k.Sessions.With(func(s nvml.Session) error {
				g, err := sessionpool.Device(s, d.UUID)
				if err == nil {
					mode, err = g.ComputeMode()
				}
				return err
			})
			if err != nil || int(mode) == r.Set {
				continue
			}
			told[d.Name] = mode.String()
			if k.told[d.Name] == mode.String() {
				continue
			}
			k.Report(&claimerror.Error{
				Reason: claimerror.DeviceNotReady, Attempt: "share", Device: d.Name, Claim: p.Claim.String(),
				Cause:  fmt.Errorf("somebody set its compute mode to %s, with which processes can have it without their share's limits", mode),
				Remedy: "set it back with nvidia-smi -c EXCLUSIVE_PROCESS",
			})
		}
	}
	k.told = told
}
