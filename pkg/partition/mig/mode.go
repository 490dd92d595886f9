// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

// Setting names the GPU records of MIG modes.
const Setting = "mig-mode"

// Switched returns the PCI addresses of the GPUs whose MIG mode this driver switched on, and may switch off again.
func (x *Executor) Switched() (map[string]bool, error) {
	addresses, err := x.modes.Addresses()
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, a := range addresses {
		out[a] = true
	}
	return out, nil
}

// RecordedInterconnect returns a GPU's interconnect from before this driver switched its MIG mode on, if recorded.
func (x *Executor) RecordedInterconnect(g gpu.GPU) gpu.Interconnect {
	r, err := x.modes.Get(g.PCIAddress)
	if err != nil || r.UUID != g.UUID {
		return gpu.Interconnect{} // The next operation on the GPU reports the error.
	}
	return r.Interconnect
}

// switchOn switches the MIG mode on if it is off. It writes a record first. After an error the mode is off, or its
// record stays.
func (x *Executor) switchOn(ctx context.Context, g *openGPU, d *plan.Device) error {
	current, pending, err := g.mode()
	if err != nil || current {
		return err
	}
	if err := x.mayReset(g, true); err != nil {
		return err
	}
	if pending {
		return &executor.Busy{
			Obstacle: "its MIG mode waits for a reset of the GPU", Remedy: "reset the GPU, or reboot the node",
		}
	}
	r, _, err := x.modes.OfBoot(d.PCIAddress, d.UUID)
	if err != nil {
		return err
	}
	r.Found, r.Set = 0, 1 // NVML's values for off and on.
	if scanned, _ := x.o.Scans.Snapshot().ByAddress(d.PCIAddress); scanned.UUID == d.UUID {
		r.Interconnect = scanned.Interconnect // The mode hides it.
	}
	if err := x.modes.Put(r); err != nil {
		return err
	}
	if err = x.setMode(ctx, g, d, true); err == nil {
		return nil
	}
	clearErr := x.clearMode(context.WithoutCancel(ctx), g, d)
	if clearErr == nil {
		clearErr = x.modes.Remove(d.PCIAddress)
	}
	return errors.Join(err, clearErr) // The record stays until the mode is restored.
}

// mayReset returns an error if the switch of the mode resets the GPU, and resets are not allowed. A virtual machine may
// be unable to reset the GPU: it would then be unusable until a reboot.
func (x *Executor) mayReset(g *openGPU, on bool) error {
	architecture, err := g.Architecture()
	switch {
	case err != nil:
		return fmt.Errorf("read the architecture: %w", err)
	case architecture >= nvml.ArchHopper, x.o.AllowReset:
		return nil
	case on:
		return &executor.Busy{
			Obstacle: "its MIG mode is off, and switching it on resets the GPU",
			Remedy:   "switch the mode on (nvidia-smi -mig 1) or allow resets with --allow-gpu-reset",
		}
	}
	return &executor.Busy{
		Obstacle: "its MIG mode is on, and switching it off resets the GPU",
		Remedy:   "switch the mode off (nvidia-smi -mig 0) or allow resets with --allow-gpu-reset",
	}
}

// setMode switches the mode and reads it back. The result of the switch alone is not reliable: the mode can change
// despite an error, or stay despite a success.
func (x *Executor) setMode(ctx context.Context, g *openGPU, d *plan.Device, want bool) error {
	return x.retryInUse(ctx, 4*x.o.Timeout, func() error {
		x.o.Switches.Lock(d.PCIAddress)
		defer x.o.Switches.Unlock(d.PCIAddress)
		setErr := g.SetMIGMode(want)
		if err := g.Reopen(); err != nil {
			return errors.Join(setErr, err)
		}
		current, _, err := g.mode()
		if err != nil {
			return errors.Join(setErr, err)
		}
		if current != want {
			if setErr == nil {
				setErr = errors.New("the driver accepted the switch but the mode did not change")
			}
			word := map[bool]string{true: "on", false: "off"}[want]
			return g.inUse(fmt.Errorf("switch the MIG mode %s: %w", word, setErr), anyInstance)
		}
		if d.Minor, err = g.MinorNumber(); err != nil {
			return fmt.Errorf("read the minor number: %w", err)
		}
		return nil
	})
}

// clearMode switches the mode off, and cancels a pending switch.
func (x *Executor) clearMode(ctx context.Context, g *openGPU, d *plan.Device) error {
	if err := g.Reopen(); err != nil {
		return err // The handle is of before a switch.
	}
	current, pending, err := g.mode()
	switch {
	case err != nil:
		return err
	case current:
		return x.setMode(ctx, g, d, false)
	case pending:
		if err := g.SetMIGMode(false); err != nil {
			return fmt.Errorf("cancel the pending MIG mode: %w", err)
		}
	}
	return nil
}

// Settle implements devicestate.Options.Settle: it switches off a MIG mode that this driver switched on, before a claim
// gets the whole GPU, and refuses a GPU with another's mode. Without a record and a scanned mode it only reads one
// file. On some boards the mode survives a boot, so its record does too.
func (x *Executor) Settle(ctx context.Context, d *plan.Device) error {
	if !d.WholeGPU() {
		return nil
	}
	// The driver only switches modes on, so the previous mode was off even if the record is damaged.
	toFound := func(int) error {
		return x.onGPU(ctx, "prepare", *d, func(g *openGPU) error { return x.switchOff(ctx, g, d) })
	}
	if _, err := x.modes.Get(d.PCIAddress); errors.Is(err, fs.ErrNotExist) {
		scanned, _ := x.o.Scans.Snapshot().ByAddress(d.PCIAddress)
		switch {
		case x.o.AdoptExternal && scanned.MIG.Capable:
			return toFound(0)
		case scanned.MIG.Enabled: // The scan may be older than the end of this driver's last partition.
			return x.onGPU(ctx, "prepare", *d, (*openGPU).refuseMode)
		}
		return nil
	}
	return x.modes.Restore(d.PCIAddress, d.UUID, true, toFound)
}

// Restore implements executor.Restorer: it switches the mode of an idle GPU back. The caller holds the GPU's lock, and
// no claim has a part of it.
func (x *Executor) Restore(ctx context.Context, g gpu.GPU) error {
	name := gpu.NameOf(g.PCIAddress)
	return x.Settle(ctx, &plan.Device{Name: name, PCIAddress: g.PCIAddress, UUID: g.UUID, Kind: gpu.KindGPU})
}

// refuseMode returns an error while the mode is on, which an administrator set.
func (g *openGPU) refuseMode() error {
	on, _, err := g.mode()
	if err != nil || !on {
		return err
	}
	there, err := g.instances()
	if err == nil && len(there) > 0 {
		err = obstructed(there)
	}
	if err != nil {
		return err
	}
	return &executor.Busy{
		Obstacle: "its MIG mode is on, which this driver did not set",
		Remedy: "the kubelet retries; switch the mode off (nvidia-smi -mig 0), or let the driver do so with " +
			"--adopt-external-mig",
	}
}

// switchOff switches the mode off on a GPU without partitions.
func (x *Executor) switchOff(ctx context.Context, g *openGPU, d *plan.Device) error {
	current, _, err := g.mode()
	if err != nil {
		return err
	}
	if current {
		if err := x.mayReset(g, false); err != nil {
			return err
		}
		there, err := g.instances()
		if err != nil {
			return err
		}
		switch stuck, err := x.stuckOn(d.PCIAddress, d.UUID); {
		case err != nil:
			return err
		case len(there) > 0 && len(stuck) > 0:
			return inPlace(stuck)
		case len(there) > 0 && !x.o.AdoptExternal:
			return obstructed(there)
		}
		for _, i := range there {
			if err := x.remove(ctx, g, i); err != nil {
				return err
			}
		}
	}
	return x.clearMode(ctx, g, d)
}

// DropDead implements executor.Dropper: it removes the record of a mode that the reboot reset: another program
// switches it on from now on. Boards that keep the mode over a boot keep the record.
func (x *Executor) DropDead(g gpu.GPU) error {
	r, err := x.modes.Get(g.PCIAddress)
	if err != nil || g.MIG.Enabled || g.MIG.Pending {
		return nil // The next operation on the GPU reports the error.
	}
	boot, err := x.host.BootID()
	if err != nil || r.BootID == boot {
		return err
	}
	return x.modes.Remove(g.PCIAddress)
}

// Setting is the MIG mode as a setting that is restored after an idle time; 0 keeps modes on until a claim takes the
// whole GPU.
func (x *Executor) Setting(after time.Duration) executor.Setting {
	if after == 0 {
		after = -1
	}
	return executor.Setting{Restorer: x.once(), Records: x.modes, After: after}
}

// once returns an executor that makes one attempt.
func (x *Executor) once() *Executor {
	once := *x
	once.o.Timeout = time.Nanosecond
	return &once
}

// NeededBy implements executor.Restorer. The mode of a GPU is not switched while a claim has a part of it.
func (x *Executor) NeededBy(plan.Device) bool { return true }
