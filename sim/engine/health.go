// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strconv"
	"strings"

	"gpu-dra-driver/internal/nvml"
)

// Health fields of nvml.h.
const (
	FieldCorrectable    = 3
	FieldUncorrectable  = 4
	FieldRemappedCor    = 142
	FieldRemappedUnc    = 143
	FieldRemapPending   = 144
	FieldRemapFailed    = 145
	FieldRecoveryAction = 230
)

// Recovery actions of nvml.h, by the words of nvidia-smi.
var recoveryActions = []string{
	"none", "reset", "reboot", "drain-p2p", "drain-reset", "imex", "bus-reset", "system-reboot",
}

// SetRecovery sets the driver's recovery action for a GPU, by its name. A change raises XID 154.
func (s *State) SetRecovery(g *GPU, action string) error {
	for n, name := range recoveryActions {
		if name != action {
			continue
		}
		if n != g.Recovery {
			s.RaiseXID(g, 154, fmt.Sprintf("GPU recovery action changed from 0x%x (%s) to 0x%x (%s)",
				g.Recovery, g.RecoveryAction(), n, name))
		}
		g.Recovery = n
		return nil
	}
	return fmt.Errorf("no recovery action %q: give one of %s", action, strings.Join(recoveryActions, ", "))
}

// RecoveryAction returns the name of the driver's recovery action.
func (g *GPU) RecoveryAction() string {
	if g.Recovery < 0 || g.Recovery >= len(recoveryActions) {
		return strconv.Itoa(g.Recovery)
	}
	return recoveryActions[g.Recovery]
}

// SetRemap makes a row of memory wait for a reset ("pending"), or fail for ever ("failed"), with the driver's XIDs.
func (s *State) SetRemap(g *GPU, state string) error {
	switch state {
	case "none":
	case "pending":
		s.RaiseXID(g, 63, "Row Remapper: New row marked for remapping, reset gpu to activate.")
	case "failed":
		s.RaiseXID(g, 64, "Row Remapper: Failed to remap a row.")
	default:
		return fmt.Errorf("remap %q: give none, pending or failed, and a GPU", state)
	}
	g.RemapPending, g.RemapFailed = state == "pending", state == "failed"
	return nil
}

// AddECC adds errors of memory, with the driver's events. "none" ends all.
func (s *State) AddECC(g *GPU, kind string, count uint64) error {
	switch kind {
	case "none":
		g.CorrectableErrors, g.UncorrectableErrors, g.SRAMThreshold, g.UnrepairableMemory = 0, 0, false, false
	case "correctable":
		g.CorrectableErrors += count
		s.RaiseOf(g, Event{Type: EventSingleBitECC, GPUInstance: -1, ComputeInstance: -1})
	case "uncorrectable":
		g.UncorrectableErrors += count
		s.RaiseOf(g, Event{Type: EventDoubleBitECC, GPUInstance: -1, ComputeInstance: -1})
		s.RaiseXID(g, 48, "DBE (Double Bit Error) ECC Error")
	case "sram":
		g.SRAMThreshold = true
	case "unrepairable":
		g.UnrepairableMemory = true
	default:
		return fmt.Errorf("ecc %q: give correctable, uncorrectable, sram, unrepairable or none, and a GPU", kind)
	}
	return nil
}

// slowdowns are sets of reasons for reduced clocks, as the driver reports them together.
var slowdowns = map[string]nvml.Slowdown{
	"none": 0, "thermal": nvml.SoftwareThermalSlowdown, "hw-thermal": nvml.HardwareThermalSlowdown | nvml.HardwareSlowdown,
	"power-brake": nvml.PowerBrakeSlowdown | nvml.HardwareSlowdown, "hw-slowdown": nvml.HardwareSlowdown,
}

// SetSlowdown sets the reasons for reduced clocks.
func (g *GPU) SetSlowdown(reason string) error {
	set, ok := slowdowns[reason]
	if !ok {
		return fmt.Errorf("throttle %q: give none, thermal, hw-thermal, power-brake or hw-slowdown, and a GPU", reason)
	}
	g.Slowdowns = set
	return nil
}

// recoverable reports whether a reset of the GPU ends the reason of the action.
func recoverable(action int) bool { return action != 2 && action != 7 }

// recoveryDriver is the first release branch of drivers with the recovery action.
const recoveryDriver = 570

// RemapArchitecture is the first architecture that replaces rows of memory: Ampere.
const RemapArchitecture = 7

// HealthField returns the value of one of the fields above.
func (v View) HealthField(id uint32) (uint64, nvml.Code) {
	var branch int
	if _, err := fmt.Sscan(strings.ReplaceAll(v.Profile.Driver.Version, ".", " "), &branch); err != nil {
		return 0, nvml.Unknown
	}
	remaps := v.Board.Architecture >= RemapArchitecture && v.Board.ECC && !v.MIGEnabled
	switch {
	case id == FieldRecoveryAction && branch >= recoveryDriver:
		return uint64(v.Recovery), 0
	case id == FieldCorrectable && v.Board.ECC:
		return v.CorrectableErrors, 0
	case id == FieldUncorrectable && v.Board.ECC:
		return v.UncorrectableErrors, 0
	case id == FieldRemappedCor && remaps:
		return 0, 0
	case id == FieldRemappedUnc && remaps:
		return uint64(v.RemappedRows), 0
	case id == FieldRemapPending && remaps:
		return flag(v.RemapPending), 0
	case id == FieldRemapFailed && remaps:
		return flag(v.RemapFailed), 0
	}
	return 0, nvml.NotSupported
}

func flag(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// PCIeWidth returns the number of lanes of the link.
func (v View) PCIeWidth() int { return max(v.Board.PCIeWidth-v.LostLanes, 0) }
