// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml/real"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/kubeletplugin"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/partition/mig"
	"gpu-dra-driver/pkg/plan"
	"gpu-dra-driver/pkg/record"
	"gpu-dra-driver/pkg/resourceslices"
)

// run is the program: 0 when it was asked to end, 1 when it cannot go on, 2 for a command line that makes no sense.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	c, err := flags.Parse(args, environ)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, "dra-kubelet-plugin publishes a node's NVIDIA GPUs and prepares them for the pods that claim them.\n\n"+flags.Usage())
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%v\nsee dra-kubelet-plugin --help\n", err)
		return 2
	case c.Version:
		fmt.Fprintln(stdout, version)
		return 0
	}
	startLogging(c.Verbosity, stderr)
	defer klog.Flush()
	tuneMemory(environ)
	klog.Background().Info("Starting", "version", version, "node", c.NodeName, "driver", c.DriverName,
		"podNamespace", c.PodNamespace, "podUID", c.PodUID)
	if err := serve(ctx, c); err != nil {
		klog.Background().Error(err, "Ending")
		return 1
	}
	klog.Background().Info("Ended as asked")
	return 0
}

// LabelMkdir is the making of the plugin's directories.
const LabelMkdir host.Label = "plugin.mkdir"

// serve puts the parts together and runs them until the context ends.
func serve(ctx context.Context, c flags.Config) error {
	machine := host.New(host.Options{BootIDFile: c.BootIDFile})
	defer machine.Close()
	dataDir := filepath.Join(c.KubeletPluginsDir, c.DriverName)
	for _, dir := range []string{dataDir, c.KubeletRegistrarDir} {
		if err := machine.MkdirAll(LabelMkdir, dir, 0o750); err != nil {
			return fmt.Errorf("make the plugin's directories: %w", err)
		}
	}
	client, err := newClient(c.Kubeconfig)
	if err != nil {
		return err
	}
	devRoot := c.DevRoot
	if devRoot == "" {
		devRoot = c.ContainerDriverRoot
	}
	stateDir := filepath.Join(dataDir, "state")
	modes, err := record.OpenGPUs(machine, filepath.Join(stateDir, "gpus"), mig.Setting)
	if err != nil {
		return fmt.Errorf("open the plugin's state: %w", err)
	}
	// Switches of MIG modes hold it shared and a scan holds it alone: a scan would see the GPU come and go.
	var scanLock sync.RWMutex
	library := real.New(c.ContainerDriverRoot)
	var plugin *kubeletplugin.Plugin
	report := func(err error) { plugin.Report(err) }
	sessions := sessionpool.New(library, report)
	partitions := mig.New(machine, sessions, modes, mig.Options{
		AllowReset: c.AllowGPUReset, AdoptForeign: c.AdoptForeignMIG, ScanLock: scanLock.RLocker(), ProcRoot: c.ProcRoot,
		Interconnect: func(uuid string) gpu.Interconnect {
			for _, g := range plugin.Snapshot().GPUs {
				if g.UUID == uuid {
					return g.Interconnect
				}
			}
			return gpu.Interconnect{}
		},
	})
	settings := &settings{
		path: c.SharingConfig, node: c.NodeName, mps: c.MPSDir != "", report: report,
		changed: func() { plugin.Republish() },
	}
	sharers, err := newSharers(machine, sessions, filepath.Join(stateDir, "gpus"), c, func(uuid string) bool {
		return slices.ContainsFunc(plugin.Snapshot().GPUs, func(g gpu.GPU) bool { return g.UUID == uuid })
	})
	if err != nil {
		return err
	}
	sharers.executors[plan.MIGExecutor] = partitions
	plugin = kubeletplugin.New(kubeletplugin.Options{
		Driver: c.DriverName, Node: c.NodeName, PodUID: c.PodUID, DataDir: dataDir, RegistrarDir: c.KubeletRegistrarDir,
		MIG:             kubeletplugin.MIG{AllowReset: c.AllowGPUReset, AdoptForeign: c.AdoptForeignMIG, Switched: partitions.Switched, RecordedInterconnect: partitions.RecordedInterconnect},
		Offer:           settings.offer,
		HealthcheckPort: c.HealthcheckPort, VanishedGrace: c.VanishedClaimGrace, Client: client, Idle: giveBack,
		Inventory: inventory.New(inventory.Options{
			Library: library, ScanLock: &scanLock, ProcRoot: c.ProcRoot, SysRoot: c.SysRoot, DevRoot: devRoot,
		}),
	})
	if c.SharingConfig != "" {
		settings.look()
	}
	root := driverroot.New(driverroot.Options{
		DriverRoot: c.ContainerDriverRoot, HostDriverRoot: c.NvidiaDriverRoot, DevRoot: c.DevRoot, HostDevRoot: c.DevRoot,
		ProcRoot: c.ProcRoot, HookPath: filepath.Join(dataDir, kubeletplugin.HookName),
	})
	hook := &hook{root: root, install: func(ctx context.Context) error {
		return kubeletplugin.InstallHook(ctx, machine, c.CDIHookPath, dataDir)
	}}
	if err := hook.ready(ctx); err != nil {
		// Pods can end without it, and Prepare tries again.
		klog.Background().Error(err, "No container can get a GPU until this is mended")
	}
	engine, err := devicestate.Open(devicestate.Options{
		Host: machine, Dir: stateDir, Specs: store.New(machine, c.CDIRoot, c.DriverName),
		Driver: c.DriverName, Pool: resourceslices.PoolName(c.NodeName), Snapshot: plugin.Snapshot, Edits: hook, Report: plugin.Report,
		Executors: sharers.executors, MakeWhole: partitions.MakeWhole, Policy: settings.policy, NoMPS: noMPS(c.MPSDir), MPSDir: mpsDir(c),
		DevicePlugin: plugin.Rival,
	})
	if err != nil {
		return fmt.Errorf("open the plugin's state: %w", err)
	}
	instance, err := machine.Enlist(ctx, filepath.Join(dataDir, "instance.lock"))
	if err != nil {
		return fmt.Errorf("enlist as an instance of the plugin: %w", err)
	}
	m := metrics.New(metrics.Options{Driver: c.DriverName, Node: c.NodeName, Version: version, Records: engine})
	stop, err := serveHTTP(c, m)
	if err != nil {
		return err
	}
	defer stop()
	idle := mig.NewIdleModes(partitions, engine, plugin.Snapshot, c.MIGModeIdle)
	witness := kubeletplugin.Witness{
		Socket: filepath.Join(c.KubeletPodResourcesDir, "kubelet.sock"), ProcRoot: c.ProcRoot,
		Snapshot: plugin.Snapshot, Held: engine.Held, Capability: capability(root),
	}
	return plugin.Run(ctx, kubeletplugin.Parts{
		Tidy: idle.Reconcile, Keep: func(ctx context.Context) { keep(ctx, settings, sharers.keeper(engine, report)) },
		Engine: engine, Metrics: m, Newest: instance.Newest,
		Witness: witness, Served: witness.Served,
	})
}

// capability names the device node of a partition's compute instance, and nothing where the partition is gone.
func capability(root *driverroot.Root) func(plan.Device) (string, error) {
	return func(d plan.Device) (string, error) {
		node, err := root.ComputeCapability(driverDevice(d))
		if errors.Is(err, driverroot.ErrNoPartition) || errors.Is(err, driverroot.ErrNoGPU) {
			return "", nil
		}
		return node, err
	}
}
