// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package smi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gpu-dra-driver/sim/engine"
)

const errNoDriver message = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."

// Find returns the facts of the machine at root, else of the machine that holds the executable at own. In a container
// it returns the firmware's facts about the GPUs in /dev.
func Find(root, own string) (Facts, error) {
	roots := []string{root}
	if root == "" {
		roots = []string{filepath.Dir(filepath.Dir(filepath.Dir(own)))}
	}
	for _, r := range roots {
		s, err := engine.Open(r, nil).State()
		if errors.Is(err, engine.ErrNoMachine) {
			continue
		}
		if err != nil {
			return Facts{}, fmt.Errorf("reading the simulated machine in %s: %w", r, err)
		}
		if !s.DriverLoaded {
			return Facts{}, errNoDriver
		}
		return FromState(s), nil
	}
	return inContainer(max(root, "/"))
}

func inContainer(root string) (Facts, error) {
	files, err := filepath.Glob(filepath.Join(root, "lib/firmware/nvidia/*/gsp_*0x.bin"))
	if err != nil || len(files) == 0 {
		return Facts{}, errNoDriver
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		return Facts{}, err
	}
	f, err := DecodeFirmware(b)
	if err != nil {
		return Facts{}, fmt.Errorf("%s: %w", files[0], err)
	}
	var shown []GPU
	for _, g := range f.GPUs {
		if _, err := os.Stat(filepath.Join(root, "dev", fmt.Sprintf("nvidia%d", g.Minor))); err == nil {
			shown = append(shown, g)
		}
	}
	f.GPUs = shown
	return f, addPartitions(&f, root, filepath.Dir(files[0]))
}
