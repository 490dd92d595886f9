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
	"gpu-dra-driver/pkg/node/health/kernellog"
	"gpu-dra-driver/pkg/node/health/tracker"
)

// faults are the faults of GPUs.
type faults struct {
	records *record.GPUs
	tracker *tracker.Tracker
}

func newFaults(n *node) (*faults, error) {
	records, err := openRecords(n.machine, n.Config, tracker.Setting)
	if err != nil {
		return nil, err
	}
	return &faults{records, tracker.New(n.machine, records, settingLock(n.Config, tracker.Setting), n.events,
		n.Config.XIDs)}, nil
}

// newKernelLog finds XIDs in the kernel's log.
func newKernelLog(n *node, g *gpus, f *faults, instance *host.Instance) *kernellog.Log {
	return kernellog.New(n.machine, kernellog.Options{
		Path:     n.KernelLog,
		Cursor:   filepath.Join(stateDir(n.Config), "kernellog.json"),
		Scans:    g.scans,
		Health:   f.tracker,
		XIDs:     g.xids,
		Instance: instance,
		Reports:  n.events,
	})
}

// openRecords opens the records of a setting of GPUs.
func openRecords(machine *host.Host, c flags.Config, setting string) (*record.GPUs, error) {
	records, err := record.OpenGPUs(machine, filepath.Join(stateDir(c), "gpus"), setting)
	if err != nil {
		return nil, fmt.Errorf("open the plugin's state: %w", err)
	}
	return records, nil
}

// settingLock is the lock of the records of a setting.
func settingLock(c flags.Config, setting string) string {
	return filepath.Join(stateDir(c), "locks", setting)
}

// clearFaults removes the remembered faults of a GPU and returns the program's exit code.
func clearFaults(c flags.Config, stdout, stderr io.Writer) int {
	machine := host.New(host.Options{BootIDFile: c.BootIDFile})
	defer machine.Close()
	records, err := openRecords(machine, c, tracker.Setting)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	faults, err := tracker.Clear(machine, records, settingLock(c, tracker.Setting), c.ClearFaults)
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
