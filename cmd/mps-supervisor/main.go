// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command mps-supervisor runs the MPS daemons of shared GPUs for the kubelet plugin of its node. It is a separate
// process, so that daemons outlive an upgrade of the plugin, and it has no access to Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"gpu-dra-driver/cmd/envflags"
	"gpu-dra-driver/cmd/mps-supervisor/flags"
	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/mpsd/supervisor"
)

// run is the program. It returns 0 after a signal, 1 after an error, and 2 for an invalid command line.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == supervisor.EnterVerb {
		fmt.Fprintln(stderr, "mps-supervisor:", supervisor.Enter(args[1:]))
		return 1
	}
	if len(args) > 0 && args[0] == checkVerb {
		if err := check(ctx, args[1:], environ); err != nil {
			fmt.Fprintln(stderr, "mps-supervisor:", err)
			return 1
		}
		return 0
	}
	c, err := flags.Parse(args, environ)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, "mps-supervisor runs the MPS daemons of shared GPUs.\n\n"+
			envflags.Usage(flags.New(new(flags.Config))))
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "mps-supervisor: %v\n", err)
		return 2
	case c.Version:
		fmt.Fprintln(stdout, version)
		return 0
	}
	// The heap is tiny, so frequent garbage collection costs little.
	debug.SetGCPercent(20)
	logger := log.New(stderr, "", log.LstdFlags|log.LUTC)
	boot, err := os.ReadFile(c.BootIDFile)
	if err != nil {
		logger.Printf("read the boot's ID: %v", err)
		return 1
	}
	s, err := supervisor.New(ctx, supervisor.Options{
		Dir: c.MPSDir, Root: c.DriverRoot, DevRoot: c.DevRoot, Shm: c.Shm,
		BootID: strings.TrimSpace(string(boot)), Log: logger,
	})
	if err == nil {
		defer s.Close()
		logger.Printf("supervisor of MPS daemons %s, daemons in %s, driver root %s", version, c.MPSDir, c.DriverRoot)
		err = s.Serve(ctx)
	}
	if err != nil && ctx.Err() == nil {
		logger.Print(err)
		return 1
	}
	return 0
}

// checkVerb is the argument that checks whether the running supervisor answers, for the pod's readiness probe.
const checkVerb = "check"

func check(ctx context.Context, args, environ []string) error {
	c, err := flags.Parse(args, environ)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = mpsd.NewClient(filepath.Join(c.MPSDir, mpsd.SocketName)).List(ctx, "")
	return err
}

// version is set by the build.
var version = "unknown"

func main() { envflags.Main(run) }
