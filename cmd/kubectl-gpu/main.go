// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-gpu is a kubectl plugin: it shows the GPUs of a cluster, their partitions and shares, and the claims
// and pods that hold them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-dra-driver/cmd/setup"
)

// version is set by the build.
var version = "unknown"

// exitCode ends the program with a code after a command printed its result.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError is an error in the command line.
type usageError struct{ error }

func newRoot(streams genericiooptions.IOStreams) *cobra.Command {
	f := newFactory(streams)
	root := newRootOf(f)
	f.addFlags(root.PersistentFlags())
	return root
}

// newRootOf returns the commands of a factory, without the flags of all commands.
func newRootOf(f *factory) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-gpu",
		Short: "Show the GPUs of a cluster and what holds them",
		Long: "Show the GPUs of a cluster, their partitions and shares, and the claims and pods that hold them.\n" +
			"\n" +
			"Read access is enough for all commands but cordon, uncordon, drain, clear, cleanup, and run with " +
			"--apply. A\n" +
			"command that lacks a right says so and shows the rest.\n" +
			"\n" +
			"Colours appear only on a terminal, and not if NO_COLOR is set.",
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl gpu"},
		Version:           version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		DisableAutoGenTag: true,
		PersistentPreRunE: func(*cobra.Command, []string) (err error) {
			if f.timeout, err = clientcmd.ParseTimeout(cmp.Or(*f.config.Timeout, "0")); err != nil {
				return usageError{err}
			}
			return nil
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(usage)
	root.SetIn(f.In)
	root.SetOut(f.Out)
	root.SetErr(f.ErrOut)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newLs(f), newLayout(f), newTop(f), newClaims(f), newSlices(f), newWhy(f), newDoctor(f),
		newBundle(f),
		newCordon(f), newUncordon(f), newDrain(f), newClear(f), newPack(f), newRun(f), newWeb(f), newCleanup(f),
		&cobra.Command{
			Use:   "version",
			Short: "Print the version of this command",
			Long:  "Print the version of this command.",
			Args:  cobra.NoArgs,
			Run:   func(*cobra.Command, []string) { fmt.Fprintln(f.Out, version) },
		},
		&cobra.Command{
			Use:   "options",
			Short: "List the flags of all commands",
			Long:  "List the flags of all commands: the cluster, its user and the namespace.",
			Args:  cobra.NoArgs,
			Run:   func(*cobra.Command, []string) { fmt.Fprint(f.Out, root.PersistentFlags().FlagUsages()) },
		})
	addBudgets(root, f)
	return root
}

// usage is cobra's, without the flags of all commands: those of a Kubernetes client fill a screen.
const usage = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Available Commands:{{range .Commands}}{{if (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if and .HasParent .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

Use "{{.CommandPath}} [command] --help" for more information about a command.{{end}}
Use "{{.Root.CommandPath}} options" for the flags of all commands, such as --namespace and --context.
`

// run is the program. It returns 0 after success, 1 after an error and 2 for an invalid command line. Commands can
// return other codes.
func run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	root := newRoot(streams)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, new(usageError)) || command == root:
		fmt.Fprintf(streams.ErrOut, "error: %v\nsee %s --help\n", err, command.CommandPath())
		return 2
	}
	fmt.Fprintf(streams.ErrOut, "error: %s\n", sentence(err))
	return 1
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	setup.StartLogging(0, io.Discard) // Errors are returned; the libraries' log lines would only repeat them.
	code := run(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}
