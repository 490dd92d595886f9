// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command mps-supervisor runs the MPS daemons that shares of GPUs need, on demand of the kubelet plugin of its node. It is
// a process of its own so that an upgrade of the plugin ends no daemon, and it has no access to Kubernetes.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the build.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
