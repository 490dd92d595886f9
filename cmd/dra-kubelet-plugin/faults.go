// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"path/filepath"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu/health/tracker"
)

func openFaults(machine *host.Host, c flags.Config) (*record.GPUs, error) {
	faults, err := record.OpenGPUs(machine, filepath.Join(stateDir(c), "gpus"), tracker.Setting)
	if err != nil {
		return nil, fmt.Errorf("open the plugin's state: %w", err)
	}
	return faults, nil
}

func faultsLock(c flags.Config) string { return filepath.Join(stateDir(c), "locks", tracker.Setting) }

// clearFaults removes the remembered faults of a GPU and returns the program's exit code.
func clearFaults(c flags.Config, stdout, stderr io.Writer) int {
	machine := host.New(host.Options{BootIDFile: c.BootIDFile})
	defer machine.Close()
	records, err := openFaults(machine, c)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	faults, err := tracker.Clear(machine, records, faultsLock(c), c.ClearFaults)
	if err != nil {
		fmt.Fprintf(stderr, "clear the faults of GPU %s: %v\n", c.ClearFaults, err)
		return 1
	}
	if len(faults) == 0 {
		fmt.Fprintf(stdout, "GPU %s has no remembered faults\n", c.ClearFaults)
	}
	for _, f := range faults {
		fmt.Fprintf(stdout, "GPU %s: cleared %s (%s)\n", c.ClearFaults, f.State, f.Cause)
	}
	return 0
}
