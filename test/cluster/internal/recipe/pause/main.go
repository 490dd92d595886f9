// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command pause holds a pod's namespaces: it waits for a signal and reaps orphans. It replaces registry.k8s.io/pause,
// which cannot be pulled on a node without a registry.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
	}
}
