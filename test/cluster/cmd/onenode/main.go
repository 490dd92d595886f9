// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command onenode builds and runs a Kubernetes of one node, or a few, on this machine, isolated from its other
// software.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"gpu-dra-driver/test/cluster/internal/node"
	"gpu-dra-driver/test/cluster/internal/owner"
)

// init locks the main thread: the children's parent-death signals are bound to the thread that starts them (see
// package owner).
func init() { runtime.LockOSThread() }

const usage = `onenode runs a Kubernetes of one node on this machine, built from Go modules.

  onenode build [--kubernetes V]           build everything into the cache
  onenode which PROGRAM [--kubernetes V]   print where a built program lies
  onenode up --dir DIR [flags]             bring a cluster up; prints export KUBECONFIG=...
  onenode run --dir DIR [flags] -- CMD...  up, run CMD, down; the exit code is CMD's
  onenode down --dir DIR [--keep-logs]     end the cluster and remove every trace
  onenode status --dir DIR                 list the components
  onenode logs --dir DIR COMPONENT         print a component's log
  onenode stop|start|restart --dir DIR COMPONENT
  onenode exec --dir DIR -- CMD...         run CMD inside the node
  onenode load --dir DIR IMAGE.tar...      import image archives, on every node
  onenode reboot --dir DIR                 reboot the node; the control plane stays

Flags of up and run: --kubernetes V, --feature-gates a=true,b=false, --runtime-config g/v=true, --keep-logs,
--sync-frequency 10s, --nodes N. Of N nodes the first, onenode, has the control plane; onenode-2 and so on run pods. stop, start, restart,
exec and reboot act on the first, or on the one whose number --node gives; logs has kubelet-2 and so on.
DIR may come from $ONENODE_DIR. The cache is $GPU_DRA_CACHE or gpu-dra-driver in the user's cache directory.
`

// exitCode is a program's exit code, without a message.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

type streams struct {
	in       *os.File
	out, err *os.File
}

func main() {
	err := run(os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr})
	var code exitCode
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "onenode:", err)
		os.Exit(1)
	}
}

func run(args []string, std streams) error {
	if len(args) == 0 {
		io.WriteString(std.err, usage)
		return exitCode(2)
	}
	verb, args := args[0], args[1:]
	switch verb {
	case owner.OwnerCommand:
		return owner.Main(args[0])
	case owner.NodeCommand:
		return node.Main(args[0], args[1:])
	case node.WorkerCommand:
		return node.WorkerMain(args)
	case owner.WatchCommand:
		return owner.Watch(args[0])
	case "help", "-h", "--help":
		_, err := io.WriteString(std.out, usage)
		return err
	}
	commands := map[string]func(context.Context, []string, streams) error{
		"build":   build,
		"which":   which,
		"up":      up,
		"run":     runWith,
		"down":    down,
		"status":  status,
		"logs":    logs,
		"stop":    component("stop"),
		"start":   component("start"),
		"restart": component("restart"),
		"exec":    execute,
		"load":    load,
		"reboot":  component("reboot"),
	}
	command, ok := commands[verb]
	if !ok {
		return fmt.Errorf("no command %q: `onenode help` lists them", verb)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return command(ctx, args, std)
}

// flags is a flag set with the directory, which nearly every command has.
type flags struct {
	*flag.FlagSet
	dir string
}

func newFlags(verb string, std streams) *flags {
	f := &flags{FlagSet: flag.NewFlagSet("onenode "+verb, flag.ContinueOnError)}
	f.SetOutput(std.err)
	return f
}

func (f *flags) withDir() *flags {
	f.StringVar(&f.dir, "dir", os.Getenv("ONENODE_DIR"), "the cluster's directory")
	return f
}

// parse reads flags at any position before "--" and returns the rest.
func (f *flags) parse(args []string) ([]string, error) {
	var rest []string
	for len(args) > 0 {
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		consumed := len(args) - f.NArg()
		if consumed > 0 && args[consumed-1] == "--" {
			rest = append(rest, f.Args()...)
			break
		}
		if args = f.Args(); len(args) > 0 {
			rest, args = append(rest, args[0]), args[1:]
		}
	}
	if f.Lookup("dir") != nil && f.dir == "" {
		return nil, errors.New("--dir DIR is needed: the cluster's directory")
	}
	return rest, nil
}
