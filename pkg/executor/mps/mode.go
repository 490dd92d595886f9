// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io/fs"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
)

// Setting is the word for compute modes among GPU records.
const Setting = "compute-mode"

// exclusive sets the compute mode in which nobody but the daemon reaches the GPU. What was found is noted first.
func (x *Executor) exclusive(d plan.Device) error {
	return x.Sessions.With(func(s nvml.Session) error {
		g, err := sessionpool.Device(s, d.UUID)
		if err != nil {
			return err
		}
		mode, err := g.ComputeMode()
		switch {
		case nvml.Unavailable(err):
			return nil
		case err != nil:
			return fmt.Errorf("read the compute mode: %w", err)
		case mode == nvml.ComputeExclusiveProcess:
			return nil // Ours, or an administrator's who wants it so.
		}
		boot, err := x.Host.BootID()
		if err != nil {
			return err
		}
		// A record of this boot holds what was found before the driver set anything, which somebody undid meanwhile.
		old, err := x.Modes.Get(d.PCIAddress)
		if err != nil || old.BootID != boot || old.UUID != d.UUID {
			r := record.GPU{BootID: boot, PCIAddress: d.PCIAddress, UUID: d.UUID, Found: int(mode), Set: int(nvml.ComputeExclusiveProcess)}
			if err := x.Modes.Put(r); err != nil {
				return err
			}
		}
		return set(g, nvml.ComputeExclusiveProcess)
	})
}

// set changes the mode and looks whether it is so: an answer may be lost.
func set(g nvml.Device, want nvml.ComputeMode) error {
	setErr := g.SetComputeMode(want)
	if nvml.Unavailable(setErr) {
		return nil
	}
	now, err := g.ComputeMode()
	switch {
	case err != nil:
		return errors.Join(setErr, fmt.Errorf("read the compute mode: %w", err))
	case now == want:
		return nil
	case setErr == nil:
		setErr = errors.New("the driver accepted it and the mode did not change")
	}
	return fmt.Errorf("set the compute mode %s: %w", want, setErr)
}

// restore goes back to the mode that was found. One that died with its boot is dropped, as is another board's.
func (x *Executor) restore(d plan.Device) error {
	r, err := x.Modes.Get(d.PCIAddress)
	found := nvml.ComputeMode(r.Found)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, record.ErrUnreadable):
		found = nvml.ComputeDefault // What every GPU starts with.
	case err != nil:
		return err
	default:
		boot, err := x.Host.BootID()
		if err != nil {
			return err
		}
		if r.BootID != boot || r.UUID != d.UUID {
			return x.Modes.Remove(d.PCIAddress)
		}
	}
	err = x.Sessions.With(func(s nvml.Session) error {
		g, err := sessionpool.Device(s, d.UUID)
		if err != nil {
			return err
		}
		mode, err := g.ComputeMode()
		if nvml.Unavailable(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the compute mode: %w", err)
		}
		if mode != nvml.ComputeExclusiveProcess {
			return nil // Somebody else changed it since: it is theirs.
		}
		return set(g, found)
	})
	if sessionpool.IsGone(err) {
		return nil // The record stays: the GPU may come back.
	}
	if err != nil {
		return err
	}
	return x.Modes.Remove(d.PCIAddress)
}
