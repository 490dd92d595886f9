// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"

	"gpu-dra-driver/internal/nvml"
)

// Health fields of nvml.h.
const (
	FieldCorrectable    = 3
	FieldUncorrectable  = 4
	FieldRemapPending   = 144
	FieldRemapFailed    = 145
	FieldRecoveryAction = 230
)

// Recovery actions of nvml.h, by the words of nvidia-smi.
var recoveryActions = []string{
	"none", "reset", "reboot", "drain-p2p", "drain-reset", "imex", "bus-reset", "system-reboot",
}

// SetRecovery sets the driver's recovery action for a GPU, by its name.
func (g *GPU) SetRecovery(action string) error {
	for n, name := range recoveryActions {
		if name == action {
			g.Recovery = n
			return nil
		}
	}
	return fmt.Errorf("no recovery action %q: give one of %s", action, strings.Join(recoveryActions, ", "))
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
