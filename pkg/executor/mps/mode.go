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

// Setting is the word for compute modes among GPU records.
const Setting = "compute-mode"

// withMode calls do with a GPU and its compute mode. It does nothing on a GPU that has none.
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

// setExclusive sets the compute mode in which only the daemon reaches the GPU. The mode it finds is recorded first.
func (x *Executor) setExclusive(d plan.Device) error {
	return x.withMode(d.UUID, func(g nvml.Device, mode nvml.ComputeMode) error {
		if mode == nvml.ComputeExclusiveProcess {
			return nil // Ours, or an administrator's who wants it so.
		}
		// A record of this boot holds what was found before the driver set anything, which somebody undid meanwhile.
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

// restore sets the mode that was found.
func (x *Executor) restore(d plan.Device) error {
	err := x.modes.Restore(d.PCIAddress, d.UUID, false, func(found int) error {
		return x.withMode(d.UUID, func(g nvml.Device, mode nvml.ComputeMode) error {
			if mode != nvml.ComputeExclusiveProcess {
				return nil // Another changed it since, and it stays theirs.
			}
			return set(g, nvml.ComputeMode(found))
		})
	})
	if sessionpool.IsGone(err) {
		return nil // The record stays: the GPU may come back.
	}
	return err
}
