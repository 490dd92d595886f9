// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/sim/engine"
)

// machineRoot returns the root of the machine that a command changes.
func machineRoot(root, own string) string {
	if root == "" {
		return filepath.Dir(filepath.Dir(filepath.Dir(own)))
	}
	return root
}

// change changes a GPU of a machine.
func change(e *engine.Engine, uuid string, do func(*engine.State, *engine.GPU) error) error {
	return e.Update(func(s *engine.State) error {
		g, err := s.Find(uuid)
		if err != nil {
			return err
		}
		return do(s, g)
	})
}

// reset is nvidia-smi --gpu-reset.
func reset(facts Facts, indices []int, root string, follow func(string) func(*engine.State) error, out, errOut io.Writer) int {
	machine := engine.Open(root, follow(root))
	exit := 0
	for _, i := range indices {
		err := change(machine, facts.GPUs[i].UUID, func(s *engine.State, g *engine.GPU) error {
			if code := s.ResetGPU(g); code != 0 {
				return code
			}
			return nil
		})
		var code nvml.Code
		switch {
		case err == nil:
			fmt.Fprintf(out, "GPU %s was successfully reset.\n", facts.GPUs[i].BusID)
			continue
		case errors.As(err, &code):
			fmt.Fprintf(errOut, "The following GPUs could not be reset:\n  GPU %s: In use by another client\n", facts.GPUs[i].BusID)
		default:
			fmt.Fprintf(errOut, "The following GPUs could not be reset:\n  GPU %s: Insufficient Permissions\n", facts.GPUs[i].BusID)
		}
		exit = exitInvalid
	}
	if exit == 0 {
		fmt.Fprintln(out, "All done.")
	}
	return exit
}
