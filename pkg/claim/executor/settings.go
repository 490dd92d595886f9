// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package executor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// Setting is a GPU setting that an executor changes. It outlives its claims, so that none waits for its restoration.
type Setting struct {
	Restorer
	Records Records
	// After is how long the value must be unneeded. If it is negative, the setting is not restored for an idle GPU.
	After time.Duration
	// Longest is the longest pause between two attempts. Default: an hour.
	Longest time.Duration
	// Limit is for attempts that can take longer than a round, which does not wait for them. Restore reports its errors
	// itself then.
	Limit time.Duration
}

// Records names the GPUs whose setting is changed. *record.GPUs implements it.
type Records interface {
	Addresses() ([]string, error)
}

// Restorer restores a setting. It may also be a Keeper or a Dropper.
type Restorer interface {
	// NeededBy reports whether a claim's device needs the changed value.
	NeededBy(d plan.Device) bool
	// Restore restores the recorded value, in one attempt, and removes the record.
	Restore(ctx context.Context, g gpu.GPU) error
}

// Keeper keeps a value that GPUs can lose.
type Keeper interface {
	// Keep sets the value again if the GPU lost it while a claim needs it.
	Keep(ctx context.Context, g gpu.GPU) error
}

// Dropper has a value that can end with a boot.
type Dropper interface {
	// DropDead removes the record if a reboot, or another program, ended the change.
	DropDead(g gpu.GPU) error
}

// Locker locks GPUs. *devicestate.Engine implements it.
type Locker interface {
	// WithGPULock calls do with the lock of a GPU and the plans that hold a part of it.
	WithGPULock(ctx context.Context, address string, do func([]plan.Plan) error) error
}

// Settings restores the settings that no claim needs.
type Settings struct {
	host     *host.Host
	locker   Locker
	scans    gpu.Scans
	settings []Setting

	// short are attempts that a round waits for, long those with a Limit, by setting and GPU.
	short, long host.Attempts[attempt]
	state       map[string]*settingState
}

type attempt struct {
	setting Setting
	gpu     gpu.GPU
	state   *settingState // Only the attempt in progress uses it.
}

type settingState struct {
	unneeded time.Time // Since then no claim needs the value; zero while one does.
	failures int
	next     time.Time
	kept     time.Time // the last call of Keep
}

func NewSettings(h *host.Host, locker Locker, scans gpu.Scans, settings ...Setting) *Settings {
	return &Settings{host: h, locker: locker, scans: scans, settings: settings, state: map[string]*settingState{}}
}

const (
	// roundLimit limits one Reconcile. A hanging GPU keeps only its own settings from being restored.
	roundLimit = 10 * time.Second
	// The pause after a failed attempt doubles from the first one to the setting's longest.
	firstPause, longestPause = time.Minute, time.Hour
	// keepInterval is the interval of Keep, which may have to run a program.
	keepInterval = 5 * time.Minute
)

// Reconcile makes one attempt for each changed setting that no claim needs, concurrently. It holds a GPU's lock only
// during the attempt. It returns the failures; later calls retry them at growing intervals. Call it from one goroutine.
func (s *Settings) Reconcile(ctx context.Context) (failed []error) {
	ctx, cancel := context.WithTimeout(ctx, roundLimit)
	defer cancel()
	snapshot, short, long := s.scans.Snapshot(), map[string]attempt{}, map[string]attempt{}
	for i, setting := range s.settings {
		addresses, err := setting.Records.Addresses()
		if err != nil {
			failed = append(failed, err)
		}
		for _, address := range addresses {
			g, ok := snapshot.ByAddress(address)
			if !ok {
				continue // The GPU is gone. Its record stays until it returns.
			}
			key := fmt.Sprint(i, " ", address)
			if s.state[key] == nil {
				s.state[key] = &settingState{}
			}
			kind := short
			if setting.Limit > 0 {
				kind = long
			}
			kind[key] = attempt{setting, g, s.state[key]}
		}
	}
	s.long.Begin(long, func(a *attempt) error {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.setting.Limit)
		defer cancel()
		err := s.reconcile(limited, *a)
		if err != nil { // The lock can fail too.
			klog.FromContext(ctx).Error(err, "Restoring a setting of an idle GPU failed", "gpu", a.gpu.PCIAddress)
		}
		return err
	})
	s.long.Results() // They are reported.
	ended, running := s.short.Each(ctx, short, func(a *attempt) error { return s.reconcile(ctx, *a) })
	for _, a := range ended {
		if a.Err != nil {
			failed = append(failed, a.Err)
		}
	}
	if ctx.Err() != nil && len(running) > 0 {
		failed = append(failed, fmt.Errorf("restore settings of idle GPUs: %w", context.Cause(ctx)))
	}
	return failed
}

func (s *Settings) reconcile(ctx context.Context, a attempt) error {
	setting, g, state := a.setting, a.gpu, a.state
	return s.locker.WithGPULock(ctx, g.PCIAddress, func(plans []plan.Plan) error {
		for _, p := range plans {
			if slices.ContainsFunc(p.Devices, func(d plan.Device) bool {
				return d.PCIAddress == g.PCIAddress && !d.Admin && setting.NeededBy(d)
			}) {
				*state = settingState{kept: state.kept}
				keeper, keeps := setting.Restorer.(Keeper)
				if now := s.host.Now(); keeps && now.Sub(state.kept) >= keepInterval {
					state.kept = now
					return keeper.Keep(ctx, g)
				}
				return nil
			}
		}
		if dropper, ok := setting.Restorer.(Dropper); ok {
			if err := dropper.DropDead(g); err != nil {
				return err
			}
		}
		now := s.host.Now()
		if state.unneeded.IsZero() {
			state.unneeded = now
		}
		if setting.After < 0 || now.Sub(state.unneeded) < setting.After || now.Before(state.next) {
			return nil
		}
		if err := setting.Restore(ctx, g); err != nil {
			state.next = now.Add(min(firstPause<<min(state.failures, 10), cmp.Or(setting.Longest, longestPause)))
			state.failures++
			return err
		}
		*state = settingState{}
		return nil
	})
}
