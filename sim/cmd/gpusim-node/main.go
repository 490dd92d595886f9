// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command gpusim-node gives a cluster's node a simulated machine, as the labels of the node say.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/sim/agent"
	"gpu-dra-driver/sim/agent/label"
)

const (
	// retryAfter is the time between two tries of a failed step.
	retryAfter = 5 * time.Second
	// uninstallLimit is below the deadline of the chart's hook.
	uninstallLimit = 90 * time.Second
	// loadsEvery is the delay of a pod's utilization.
	loadsEvery = 2 * time.Second
	bootIDFile = "/proc/sys/kernel/random/boot_id"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "gpusim-node:", err)
		stop()
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	root, parts, ready         string
	node, namespace, daemonSet string
	want                       agent.Want
	podResources, cdi          string
}

func parse(args []string, out io.Writer) (verb string, o options, err error) {
	f := flag.NewFlagSet("gpusim-node run|ready|uninstall", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.root, "root", "/var/lib/gpusim-root", "directory of the machine, the same on the node and here")
	f.StringVar(&o.parts, "parts", "/usr/lib/gpusim", "directory with the files to install, libnvidia-ml.so.1 and nvidia-smi")
	f.StringVar(&o.ready, "ready-file", "/run/gpu-simulator/ready", "file that exists while the node is as wanted")
	f.StringVar(&o.node, "node", "", "name of the node")
	f.StringVar(&o.namespace, "namespace", "", "namespace of the DaemonSet")
	f.StringVar(&o.daemonSet, "daemonset", "", "name of the DaemonSet")
	f.StringVar(&o.want.Board, "board", "", "board of a node without the label "+label.Board+"; empty: none")
	f.IntVar(&o.want.GPUs, "gpus", 0, "GPUs of that board without the label "+label.GPUs+"; 0: all")
	f.StringVar(&o.want.DriverVersion, "driver-version", "", "version of NVIDIA's driver with that board; empty: the board's own")
	f.StringVar(&o.podResources, "pod-resources", "", "socket of the kubelet's pod-resources API, for pods with the annotation "+label.Utilization+"; empty: their utilization is not followed")
	f.StringVar(&o.cdi, "cdi-root", "/var/run/cdi", "directory with the CDI specs of claims")
	if len(args) == 0 {
		return "", o, errors.New("give run, ready or uninstall")
	}
	if strings.HasPrefix(args[0], "-") { // --help
		return "", o, f.Parse(args)
	}
	err = f.Parse(args[1:])
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected %q", f.Arg(0))
	}
	return args[0], o, err
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	verb, o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if verb == "ready" {
		_, err := os.Stat(o.ready)
		return err
	}
	if verb != "run" && verb != "uninstall" {
		return fmt.Errorf("no verb %q: give run, ready or uninstall", verb)
	}
	if o.namespace == "" || o.daemonSet == "" {
		return errors.New("--namespace and --daemonset are required")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	config.UserAgent = "gpusim-node"
	core, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return err
	}
	apps, err := typedappsv1.NewForConfig(config)
	if err != nil {
		return err
	}
	sets := apps.DaemonSets(o.namespace)
	if verb == "uninstall" {
		ctx, cancel := context.WithTimeout(ctx, uninstallLimit)
		defer cancel()
		return agent.Uninstall(ctx, sets, core.Pods(o.namespace), o.daemonSet, time.Second)
	}
	if o.node == "" {
		return errors.New("--node is required")
	}
	boot, err := os.ReadFile(bootIDFile)
	if err != nil {
		return fmt.Errorf("reading the host's boot ID: %w", err)
	}
	a := agent.Agent{
		Machine: agent.Machine{
			Root: o.root, Seed: o.node, BootID: strings.TrimSpace(string(boot)),
			Library: filepath.Join(o.parts, "libnvidia-ml.so.1"), SMI: filepath.Join(o.parts, "nvidia-smi"),
		},
		Default: o.want, Node: o.node, DaemonSet: o.daemonSet, Nodes: core.Nodes(), DaemonSets: sets,
		ReadyFile: o.ready, Retry: retryAfter, Log: slog.New(slog.NewTextHandler(stderr, nil)),
	}
	if o.podResources != "" {
		conn, err := grpc.NewClient("unix:"+o.podResources, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		a.Loads = &agent.Loads{
			Pods: core.Pods(""), Kubelet: podresources.NewPodResourcesListerClient(conn), CDIDir: o.cdi, Every: loadsEvery,
		}
	}
	return a.Run(ctx)
}
