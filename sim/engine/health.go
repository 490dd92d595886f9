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

// remapArchitecture is the first architecture that replaces rows of memory: Ampere.
const remapArchitecture = 7

// HealthField returns the value of one of the fields above.
func (v View) HealthField(id uint32) (uint64, nvml.Code) {
	var branch int
	if _, err := fmt.Sscan(strings.ReplaceAll(v.Profile.Driver.Version, ".", " "), &branch); err != nil {
		return 0, nvml.Unknown
	}
	switch {
	case id == FieldRecoveryAction && branch >= recoveryDriver:
		return uint64(v.Recovery), 0
	case id != FieldRecoveryAction && (v.Board.Architecture < remapArchitecture || !v.Board.ECC || v.MIGEnabled):
	case id == FieldRemapPending && v.RemapPending, id == FieldRemapFailed && v.RemapFailed:
		return 1, 0
	case id == FieldRemapPending, id == FieldRemapFailed:
		return 0, 0
	}
	return 0, nvml.NotSupported
}
