// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// defaultTimeout bounds all requests of a command together. --request-timeout changes it.
const defaultTimeout = 30 * time.Second

// completionTimeout bounds the requests of the shell's completion.
const completionTimeout = 3 * time.Second

// factory has the flags of all commands, and makes what they need.
type factory struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
	driver string
	now    func() time.Time
	// timeout is the value of --request-timeout, 0 without one.
	timeout time.Duration
}

func newFactory(streams genericiooptions.IOStreams) *factory {
	config := genericclioptions.NewConfigFlags(true)
	config.CacheDir = nil // Nothing here uses the discovery cache.
	return &factory{IOStreams: streams, config: config, now: time.Now}
}

func (f *factory) addFlags(flags *pflag.FlagSet) {
	f.config.AddFlags(flags)
	flags.StringVar(&f.driver, "driver-name", "gpu.nvidia.com", "Name of the DRA driver.")
}

// restConfig returns the configuration of the kubeconfig's context.
func (f *factory) restConfig() (*rest.Config, error) {
	config, err := f.config.ToRESTConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no cluster is configured: set KUBECONFIG or give --kubeconfig")
	case err != nil:
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	// --request-timeout limits all requests together: see bounded. Of two limits, either can end first.
	config.Timeout = 0
	config.QPS = -1 // The API server has its own fair queueing.
	config.UserAgent = "kubectl-gpu/" + version
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// namespace returns the value of --namespace, or else the namespace of the kubeconfig's context.
func (f *factory) namespace() (string, error) {
	ns, _, err := f.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("read the kubeconfig: %w", err)
	}
	return cmp.Or(ns, "default"), nil
}

// bounded returns a context that ends at the time limit of a command, which is usual without --request-timeout.
func (f *factory) bounded(ctx context.Context, usual time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, cmp.Or(f.timeout, usual))
}

// limited returns the RunE of a command whose requests end together at the time limit.
func (f *factory) limited(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, cancel := f.bounded(c.Context(), defaultTimeout)
		defer cancel()
		return run(ctx, args)
	}
}

// whileProgressing bounds the pauses between two calls of progress instead, unless --request-timeout bounds it all. It
// is for output that takes long to print.
func (f *factory) whileProgressing(
	ctx context.Context, pause time.Duration,
) (context.Context, func(), context.CancelFunc) {
	if f.timeout != 0 {
		bounded, cancel := f.bounded(ctx, 0)
		return bounded, func() {}, cancel
	}
	bounded, end := context.WithCancelCause(ctx)
	timer := time.AfterFunc(pause, func() { end(context.DeadlineExceeded) })
	return bounded, func() { timer.Reset(pause) }, func() { timer.Stop(); end(nil) }
}

// width is the number of columns of the terminal, or 80 if the output is none.
func (f *factory) width() int {
	if out, ok := f.Out.(*os.File); ok {
		if width, _, err := term.GetSize(int(out.Fd())); err == nil && width > 0 {
			return max(width, minWidth)
		}
	}
	return 80
}

const minWidth = 40

// colours reports whether the output is a terminal and the user has not set NO_COLOR.
func (f *factory) colours() bool {
	out, ok := f.Out.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(out.Fd()))
}

// sentence explains an error of the API or the network in one line.
func sentence(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("%v: the API server did not answer in time; --request-timeout sets the limit", err)
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case utilnet.IsConnectionRefused(err):
		return fmt.Sprintf("%v: no API server listens there; check the cluster of your kubeconfig", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("%v: log in again, or choose another --context or --user", err)
	}
	return err.Error()
}
