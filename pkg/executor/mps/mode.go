// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/plan"
)

// Setting names the GPU records of compute modes.
const Setting = "compute-mode"

// withMode calls do with a GPU and its compute mode. It does nothing on a device without compute mode.
func (x *Executor) withMode(uuid string, do func(nvml.Device, nvml.ComputeMode) error) error {
	return x.sessions.With(func(s nvml.Session) error {
		g, err := sessionpool.Device(s, uuid)
		if err != nil {
			return err
		}
		mode, err := g.ComputeMode()
		switch {
		case nvml.Unavailable(err):
			return nil
		case err != nil:
			return fmt.Errorf("read the compute mode: %w", err)
		}
		return do(g, mode)
	})
}

// setExclusive sets the compute mode in which only the daemon reaches the GPU. It records the previous mode first.
func (x *Executor) setExclusive(d plan.Device) error {
	return x.withMode(d.UUID, func(g nvml.Device, mode nvml.ComputeMode) error {
		if mode == nvml.ComputeExclusiveProcess {
			return nil // This driver or an administrator set it.
		}
		// A record of this boot holds the mode from before the driver's first change, which was undone meanwhile.
		r, known, err := x.modes.OfBoot(d.PCIAddress, d.UUID)
		if err != nil {
			return err
		}
		if !known {
			r.Found, r.Set = int(mode), int(nvml.ComputeExclusiveProcess)
			if err := x.modes.Put(r); err != nil {
				return err
			}
		}
		return set(g, nvml.ComputeExclusiveProcess)
	})
}

// set sets the mode and reads it back, because the answer may be lost.
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
		setErr = errors.New("the driver accepted the change but the mode did not change")
	}
	return fmt.Errorf("set the compute mode %s: %w", want, setErr)
}

// restore restores the recorded mode.
func (x *Executor) restore(d plan.Device) error {
	err := x.modes.Restore(d.PCIAddress, d.UUID, false, func(found int) error {
		return x.withMode(d.UUID, func(g nvml.Device, mode nvml.ComputeMode) error {
			if mode != nvml.ComputeExclusiveProcess {
				return nil // Another program changed the mode since, so it stays.
			}
			return set(g, nvml.ComputeMode(found))
		})
	})
	if sessionpool.IsGone(err) {
		return nil // The record stays, because the GPU may return.
	}
	return err
}
