// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
)

// exporterInterval is the age at which the search for an exporter is repeated. It reads a file of each process.
const exporterInterval = time.Minute

// dcgmNames returns whether metrics have DCGM's names too.
func dcgmNames(c flags.Config) func() bool {
	if c.DCGMNames != flags.DCGMAuto {
		return func() bool { return c.DCGMNames == flags.DCGMOn }
	}
	var mu sync.Mutex
	var at time.Time
	found := false
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) > exporterInterval {
			at, found = time.Now(), exporterRuns(c.ProcRoot)
		}
		return !found
	}
}

// exporterRuns looks for the process of a dcgm-exporter.
func exporterRuns(procRoot string) bool {
	names, _ := filepath.Glob(filepath.Join(procRoot, "[0-9]*", "comm"))
	for _, file := range names {
		// A process that just ended has no name.
		if name, _ := os.ReadFile(file); strings.TrimSpace(string(name)) == "dcgm-exporter" {
			return true
		}
	}
	return false
}
