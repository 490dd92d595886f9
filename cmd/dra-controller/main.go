// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command dra-controller keeps what a cluster needs for its GPUs: DeviceClasses, node labels, and reviews of claims.
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
	// Once it is stopping, a second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}
