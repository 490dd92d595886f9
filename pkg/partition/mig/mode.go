// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Setting is the word for MIG modes among GPU records.
const Setting = "mig-mode"

// The modes, as NVML numbers them.
const (
	off = 0
	on  = 1
)

// Switched says of which GPUs, by PCI address, this driver switched the MIG mode on, so that it may switch it off.
func (x *Executor) Switched() (map[string]bool, error) {
	addresses, err := x.Modes.Addresses()
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, a := range addresses {
		out[a] = true
	}
	return out, nil
}

// RecordedInterconnect is how a GPU was connected before this driver switched its MIG mode on; zero without a record.
func (x *Executor) RecordedInterconnect(g gpu.GPU) gpu.Interconnect {
	r, err := x.Modes.Get(g.PCIAddress)
	if err != nil || r.UUID != g.UUID {
		return gpu.Interconnect{} // Whoever needs the record says what is wrong with it.
	}
	return r.Interconnect
}

// switchOn turns the MIG mode on where it is off, and notes first that this driver did.
func (x *Executor) switchOn(ctx context.Context, g *board, d *plan.Device) error {
	current, pending, err := g.device.MIGMode()
	if err != nil {
		return untouched(fmt.Errorf("read the MIG mode: %w", err))
	}
	if current {
		return nil
	}
	architecture, err := g.device.Architecture()
	if err != nil {
		return untouched(fmt.Errorf("read the architecture: %w", err))
	}
	if architecture < nvml.ArchHopper && !x.AllowReset {
		return untouched(&busyError{
			what:   "its MIG mode is off, and switching it on resets the GPU",
			remedy: "switch the mode on (nvidia-smi -mig 1) or allow resets with --allow-gpu-reset",
		})
	}
	if pending {
		return untouched(&busyError{what: "its MIG mode waits for a reset of the GPU", remedy: "reset the GPU, or reboot the node"})
	}
	boot, err := x.Host.BootID()
	if err != nil {
		return untouched(err)
	}
	r := record.GPU{BootID: boot, PCIAddress: d.PCIAddress, UUID: d.UUID, Found: off, Set: on}
	if x.Interconnect != nil {
		r.Interconnect = x.Interconnect(d.UUID)
	}
	if err := x.Modes.Put(r); err != nil {
		return untouched(err)
	}
	err = x.set(ctx, g, d, true)
	if err == nil {
		return nil
	}
	// Nothing changed, or it is taken back: then there is nothing to note either.
	if backErr := x.takeBack(ctx, g, d); backErr != nil {
		return untouched(errors.Join(err, backErr)) // The GPU record stands for what may have changed.
	}
	return untouched(err)
}

// set switches the mode and makes sure that it is so. The answer of the switch alone does not count: it may have come
// before, or in spite of, the change.
func (x *Executor) set(ctx context.Context, g *board, d *plan.Device, want bool) error {
	return x.patiently(ctx, 4*x.Patience, func() error {
		x.ScanLock.Lock()
		defer x.ScanLock.Unlock()
		setErr := g.device.SetMIGMode(want)
		if err := g.open(); err != nil {
			return errors.Join(setErr, err)
		}
		current, _, err := g.device.MIGMode()
		if err != nil {
			return errors.Join(setErr, fmt.Errorf("read the MIG mode: %w", err))
		}
		if current != want {
			if setErr == nil {
				setErr = errors.New("the driver accepted it and the mode did not change")
			}
			return g.inUse(fmt.Errorf("switch the MIG mode %s: %w", word(want), setErr), anyInstance)
		}
		minor, err := g.device.MinorNumber()
		if err != nil {
			return fmt.Errorf("read the minor number: %w", err)
		}
		d.Minor = minor
		return nil
	})
}

// takeBack leaves the mode off after a switch that failed, a pending one included.
func (x *Executor) takeBack(ctx context.Context, g *board, d *plan.Device) error {
	current, pending, err := g.device.MIGMode()
	if err != nil {
		return fmt.Errorf("read the MIG mode: %w", err)
	}
	if current {
		if err := x.set(context.WithoutCancel(ctx), g, d, false); err != nil {
			return err
		}
	} else if pending {
		if err := g.device.SetMIGMode(false); err != nil {
			return fmt.Errorf("take back the pending MIG mode: %w", err)
		}
	}
	return x.Modes.Remove(d.PCIAddress)
}

// Whole implements devicestate.Options.Whole: a GPU whose MIG mode this driver switched on is switched back before a
// claim gets it whole. It costs one look at a file where the driver did not.
func (x *Executor) Whole(ctx context.Context, d *plan.Device) error {
	r, err := x.Modes.Get(d.PCIAddress)
	if err == nil && r.UUID != d.UUID {
		// Another board is in the slot: its mode was never this driver's.
		return x.Modes.Remove(d.PCIAddress)
	}
	if errors.Is(err, fs.ErrNotExist) && !x.AdoptForeign {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, record.ErrUnreadable) {
		return err
	}
	return x.onGPU(ctx, "prepare", *d, func(g *board) error { return x.switchOff(ctx, g, d) })
}

// Forget drops the record of a mode that died with its boot: what is switched on from now on is another's doing. Boards
// that keep their mode over a boot keep the record.
func (x *Executor) Forget(g gpu.GPU) error {
	r, err := x.Modes.Get(g.PCIAddress)
	if err != nil || g.MIG.Enabled || g.MIG.Pending {
		return nil // Whoever needs the record says what is wrong with it.
	}
	boot, err := x.Host.BootID()
	if err != nil || r.BootID == boot {
		return err
	}
	return x.Modes.Remove(g.PCIAddress)
}

// Restore switches the mode of an unused GPU back. The caller holds the GPU's lock and knows that no claim has a part of
// it; the record of a GPU that is gone stays, for the GPU may come back.
func (x *Executor) Restore(ctx context.Context, g gpu.GPU) error {
	d := plan.Device{Name: gpu.Device{Kind: gpu.KindGPU, PCIAddress: g.PCIAddress}.Name(), PCIAddress: g.PCIAddress, UUID: g.UUID}
	return x.Whole(ctx, &d)
}

// switchOff goes back to the mode that was found, which is always off: the driver only ever switches it on, so this holds
// where the record is damaged, too.
func (x *Executor) switchOff(ctx context.Context, g *board, d *plan.Device) error {
	current, pending, err := g.device.MIGMode()
	if nvml.Unavailable(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the MIG mode: %w", err)
	}
	if current {
		there, err := g.instances()
		if err != nil {
			return err
		}
		if len(there) > 0 && !x.AdoptForeign {
			return inTheWay(there)
		}
		for _, i := range there {
			if err := x.remove(ctx, g, i); err != nil {
				return err
			}
		}
		if err := x.set(ctx, g, d, false); err != nil {
			return err
		}
	} else if pending {
		if err := g.device.SetMIGMode(false); err != nil {
			return fmt.Errorf("take back the pending MIG mode: %w", err)
		}
	}
	return x.Modes.Remove(d.PCIAddress)
}

func word(want bool) string {
	if want {
		return "on"
	}
	return "off"
}
