// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"gpu-dra-driver/internal/mpsd"
	"gpu-dra-driver/internal/mpsd/supervisor"
)

// run is the program: 0 when it was asked to end, 1 when it cannot go on, 2 for a command line that makes no sense.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == supervisor.EnterVerb {
		fmt.Fprintln(stderr, "mps-supervisor:", supervisor.Enter(args[1:]))
		return 1
	}
	if len(args) > 0 && args[0] == checkVerb {
		if err := check(ctx, args[1:], getenv); err != nil {
			fmt.Fprintln(stderr, "mps-supervisor:", err)
			return 1
		}
		return 0
	}
	o, bootIDFile, asked, err := parse(args, getenv, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "mps-supervisor: %v\n", err)
		return 2
	case asked:
		fmt.Fprintln(stdout, version)
		return 0
	}
	// It holds next to nothing: a small heap costs next to no time.
	debug.SetGCPercent(20)
	logger := log.New(stderr, "", log.LstdFlags|log.LUTC)
	o.Log = logger.Printf
	boot, err := os.ReadFile(bootIDFile)
	if err != nil {
		logger.Printf("read the boot's ID: %v", err)
		return 1
	}
	o.BootID = strings.TrimSpace(string(boot))
	if err := serve(ctx, o); err != nil {
		logger.Print(err)
		return 1
	}
	return 0
}

// checkVerb asks the supervisor that runs whether it answers, for a pod's readiness.
const checkVerb = "check"

func check(ctx context.Context, args []string, getenv func(string) string) error {
	o, _, _, err := parse(args, getenv, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = mpsd.NewClient(filepath.Join(o.Dir, mpsd.SocketName)).List(ctx, "")
	return err
}

func serve(ctx context.Context, o supervisor.Options) error {
	s, err := supervisor.New(o)
	if err != nil {
		return err
	}
	defer s.Close()
	o.Log("supervisor of MPS daemons %s, daemons in %s, driver root %s", version, o.Dir, o.Root)
	return s.Serve(ctx)
}

// parse reads flags; each has an environment variable, which a flag overrides.
func parse(args []string, getenv func(string) string, stdout, stderr io.Writer) (o supervisor.Options, bootIDFile string, asked bool, err error) {
	fs := flag.NewFlagSet("mps-supervisor", flag.ContinueOnError)
	fs.SetOutput(stderr)
	text := func(name, byDefault, usage string) *string {
		env := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if v := getenv(env); v != "" {
			byDefault = v
		}
		return fs.String(name, byDefault, usage+" [$"+env+"]")
	}
	dir := text("mps-dir", "/var/lib/kubelet/plugins/gpu.nvidia.com/mps", "Directory of the daemons, at the same path on the node; mounts made in it must be seen there.")
	root := text("driver-root", "/driver-root", "Where this process sees the root of the NVIDIA driver.")
	dev := text("dev-root", "", "Directory whose dev/ holds the GPUs' device nodes. Empty: the driver root.")
	shm := text("mps-shm-size", "64Mi", "Size of the shared memory that the clients of one device have together.")
	boot := text("boot-id-file", "/proc/sys/kernel/random/boot_id", "File with the ID of the node's boot.")
	show := fs.Bool("version", false, "Print the version and exit.")
	if err := fs.Parse(args); err != nil {
		return o, "", false, err
	}
	bytes, sizeErr := size(*shm)
	switch {
	case *show:
		return o, "", true, nil
	case fs.NArg() > 0:
		return o, "", false, fmt.Errorf("argument %q is not expected: everything is a flag", fs.Arg(0))
	case !filepath.IsAbs(*dir), !filepath.IsAbs(*root):
		return o, "", false, fmt.Errorf("--mps-dir %q and --driver-root %q must be absolute paths", *dir, *root)
	case sizeErr != nil:
		return o, "", false, fmt.Errorf("--mps-shm-size: %w", sizeErr)
	}
	return supervisor.Options{Dir: *dir, Root: *root, DevRoot: *dev, ShmBytes: bytes}, *boot, false, nil
}

// size reads 64Mi, 1Gi or 65536Ki.
func size(s string) (uint64, error) {
	for suffix, shift := range map[string]uint{"Ki": 10, "Mi": 20, "Gi": 30} {
		digits, ok := strings.CutSuffix(s, suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 24)
		if err == nil && n > 0 && n<<shift >= 1<<20 {
			return n << shift, nil
		}
	}
	return 0, fmt.Errorf("%q is no size of at least 1Mi (like 64Mi or 1Gi)", s)
}
