// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command dra-kubelet-plugin publishes a node's NVIDIA GPUs and prepares them for the pods that claim them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/cmd/envflags"
	"gpu-dra-driver/cmd/setup"
	"gpu-dra-driver/internal/computepolicy"
	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml/real"
	"gpu-dra-driver/pkg/cdi/store"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/reset"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu/health/kernellog"
	"gpu-dra-driver/pkg/gpu/health/tracker"
	"gpu-dra-driver/pkg/gpu/health/watcher"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/gpu/sampler"
	"gpu-dra-driver/pkg/node/kubeletplugin"
	"gpu-dra-driver/pkg/node/kubeletplugin/podresources"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/node/sharing"
	"gpu-dra-driver/pkg/show/metrics"
	"gpu-dra-driver/pkg/show/usage/meter"
)

// run is the program. It returns 0 after a signal, 1 after an error, and 2 for an invalid command line.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	c, err := flags.Parse(args, environ)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, "dra-kubelet-plugin publishes a node's NVIDIA GPUs and prepares them for the pods that claim them.\n\n"+envflags.Usage(flags.New(new(flags.Config))))
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%v\nsee dra-kubelet-plugin --help\n", err)
		return 2
	case c.Version:
		fmt.Fprintln(stdout, version)
		return 0
	case c.ClearFaults != "":
		return clearFaults(c, stdout, stderr)
	}
	setup.StartLogging(c.Verbosity, stderr)
	defer klog.Flush()
	tuneMemory(environ)
	klog.Background().Info("Starting", "version", version, "node", c.NodeName, "driver", c.DriverName,
		"podNamespace", c.PodNamespace, "podUID", c.PodUID)
	for _, warning := range c.Warnings {
		klog.Background().Info("Warning: " + warning)
	}
	// Nothing closes the machine. Its locks end with the process, and so with the work that needs them.
	machine := host.New(host.Options{BootIDFile: c.BootIDFile})
	if err := serve(ctx, c, machine); err != nil {
		klog.Background().Error(err, "Ending")
		return 1
	}
	klog.Background().Info("Shutting down")
	return 0
}

// newClient returns a client of the API server. It does not connect yet.
func newClient(kubeconfig string) (kubernetes.Interface, error) {
	config, err := setup.ClientConfig(kubeconfig, "dra-kubelet-plugin/"+version)
	switch {
	case err != nil && kubeconfig == "":
		return nil, fmt.Errorf("use the pod's service account: %w; outside of a pod, give --kubeconfig", err)
	case err != nil:
		return nil, fmt.Errorf("read --kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the API server: %w", err)
	}
	return client, nil
}

// LabelMkdir labels the creation of the plugin's directories.
const LabelMkdir host.Label = "plugin.mkdir"

// serve constructs the plugin and runs it until the context ends. Dependencies determine the order: reports and
// Snapshots, executors, engine, plugin.
func serve(ctx context.Context, c flags.Config, machine *host.Host) error {
	if err := machine.MkdirAll(LabelMkdir, 0o750, dataDir(c), c.KubeletRegistrarDir); err != nil {
		return fmt.Errorf("make the plugin's directories: %w", err)
	}
	client, err := newClient(c.Kubeconfig)
	if err != nil {
		return err
	}
	m := metrics.New(metrics.Options{Driver: c.DriverName, Node: c.NodeName, Version: version})
	events := reporting.NewEvents(client, c.NodeName, c.DriverName, m)
	scans, changed := inventory.NewLatest(), publishing.NewTrigger()
	kubelet := podresources.NewKubelet(filepath.Join(c.KubeletPodResourcesDir, "kubelet.sock"))
	devicePlugins := podresources.NewDevicePlugins(kubelet.DevicePlugins, scans.Snapshot, changed.Fire, m)
	settings := newSharingSettings(c, events.Report, changed.Fire)

	var switches inventory.Switches
	library := real.New(c.ContainerDriverRoot)
	xids, samples := watcher.New(), sampler.New()
	operations := allSwitches{&switches, xids, samples}
	executors, err := newExecutors(machine, library, operations, scans.Snapshot, events.Report, c)
	if err != nil {
		return err
	}
	root := driverroot.New(driverroot.Options{
		DriverRoot: c.ContainerDriverRoot, HostDriverRoot: c.NvidiaDriverRoot, DevRoot: c.DevRoot, HostDevRoot: c.DevRoot,
		ProcRoot: c.ProcRoot, HookPath: filepath.Join(dataDir(c), kubeletplugin.HookName),
	})
	hook := &hook{install: func(ctx context.Context) error {
		return kubeletplugin.InstallHook(ctx, machine, c.CDIHookPath, dataDir(c))
	}}
	specs := store.New(machine, c.CDIRoot, filepath.Join(stateDir(c), "mounted"), c.DriverName)
	engine, err := devicestate.Open(devicestate.Options{
		Host: machine, Dir: stateDir(c), Specs: specs,
		Driver: c.DriverName, Pool: resourceslices.PoolName(c.NodeName), MonitorPool: resourceslices.MonitorPoolName(c.NodeName),
		Snapshot: scans.Snapshot, Edits: edits{root}, Install: hook.Install, Report: events.Report,
		Kernel: func() string { return inventory.Bindings(c.SysRoot) },
		Executors: map[string]devicestate.Executor{
			plan.MIGExecutor: executors.mig, sharing.MPSExecutor: executors.mps, sharing.TimeSliceExecutor: executors.timeSlice,
		},
		Settle: []func(context.Context, *plan.Device) error{executors.mig.Settle, executors.mps.Settle}, Policy: settings.policy, NoMPS: noMPS(c), MPSDir: mpsDir(c),
		DevicePlugin: devicePlugins.Resource, Metadata: c.DeviceMetadata,
	})
	if err != nil {
		return fmt.Errorf("open the plugin's state: %w", err)
	}
	faults, err := openFaults(machine, c)
	if err != nil {
		return err
	}
	health := tracker.New(machine, faults, faultsLock(c), events.Report, c.XIDs)
	usage := podresources.NewUsage(kubelet, podresources.UsageOptions{
		ProcRoot: c.ProcRoot, Snapshot: scans.Snapshot, Held: engine.Held, Capability: capability(root),
		Ignored: c.IgnoredProcesses,
	})
	m.CollectRecords(engine, usage.Users, samples.Snapshot, dcgmNames(c))
	m.CollectHealth(scans.Snapshot, engine, health.Last)
	instance, err := machine.Enlist(ctx, filepath.Join(dataDir(c), "instance.lock"))
	if err != nil {
		return fmt.Errorf("enlist as an instance of the plugin: %w", err)
	}
	seconds := meter.New(machine, meter.Options{
		Path: filepath.Join(stateDir(c), "usage.json"), Held: engine.Held, Snapshot: scans.Snapshot, Scanned: scans.Scanned(),
		Served: devicePlugins.GPUs, Newest: instance.Newest, Samples: samples.Snapshot,
	})
	m.CollectUsage(seconds.Account)
	stop, err := serveHTTP(c, m)
	if err != nil {
		return err
	}
	defer stop()

	node := publishing.NewNode(c.NodeName, scans, engine, changed, events.Report, publishing.NodeOptions{
		AllowReset: c.AllowGPUReset, AdoptForeign: c.AdoptForeignMIG, Switched: executors.mig.Switched, RecordedInterconnect: executors.mig.RecordedInterconnect,
		Placements: settings.placements, Groups: settings.groups, Offer: settings.offer, DevicePlugins: devicePlugins.GPUs,
		NoPartitions: !c.MIGDevices, NoMonitors: !c.MonitorDevices, Evict: c.HealthEvict,
	})
	background := []func(context.Context){devicePlugins.Run, settings.run, seconds.Run, func(ctx context.Context) {
		// Publishing need not wait for the copy of the hook; Prepare does, and installs it again after a failure.
		if err := hook.Install(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Installing the CDI hook failed; containers cannot get a GPU until it succeeds")
		}
	}}
	if c.HTTPEndpoint != "" && c.MetricsPath != "" {
		measured := sampler.Options{Library: library, Targets: func() []sampler.Target {
			plans, _, _ := engine.Held() // The engine reports unreadable records.
			return sampler.Targets(scans.Snapshot(), plans, c.MetricsIdle)
		}}
		addProcesses(&measured, c, specs)
		background = append(background, func(ctx context.Context) { samples.Run(ctx, measured) })
	}
	if c.AskedConfigMap != "" {
		asked := publishing.NewAsked(ctx, client, c.PodNamespace, c.AskedConfigMap, c.NodeName, events.Report, changed.Fire)
		settings.asked, settings.groupsAsked, background = asked.Placements, asked.Groups, append(background, asked.Run)
	}
	if c.KernelLog != "" {
		background = append(background, kernellog.New(machine, kernellog.Options{
			Path: c.KernelLog, Cursor: filepath.Join(stateDir(c), "kernellog.json"), Snapshot: scans.Snapshot, Scanned: scans.Scanned(),
			Event: health.Event, Poll: xids.XID, Newest: instance.Newest, Report: events.Report,
		}).Run)
	}
	if c.MPSDir != "" {
		background = append(background, mps.NewWatcher(executors.mps, engine, events.Report).Run)
	}
	gpuSettings := []executor.Setting{executors.mig.Setting(c.MIGModeIdle), executors.mps.Setting(), executors.timeSlice.Setting()}
	if c.HealthReset == flags.ResetWhenIdle {
		attempts, err := record.OpenGPUs(machine, filepath.Join(stateDir(c), "gpus"), reset.Setting)
		if err != nil {
			return fmt.Errorf("open the plugin's state: %w", err)
		}
		gpuSettings = append(gpuSettings, reset.New(reset.Options{
			Faults: faults, Attempts: attempts, Reset: computepolicy.SMI{Root: c.ContainerDriverRoot}.Reset, Last: health.Last,
			DevicePlugin: devicePlugins.Resource, Client: usage.Client, Switches: operations, ProcRoot: c.ProcRoot,
			Uptime: machine.Uptime, Report: events.Report,
		}).Setting())
	}
	return kubeletplugin.New(engine, node, events, m, kubeletplugin.Options{
		Driver: c.DriverName, Node: c.NodeName, PodUID: c.PodUID, DataDir: dataDir(c), RegistrarDir: c.KubeletRegistrarDir,
		HealthcheckPort: c.HealthcheckPort, Client: client, Newest: instance.Newest, SchedulerVersion: c.Scheduler,
		Inventory: inventory.New(inventory.Options{
			Health: health, Library: library, Switches: &switches, ProcRoot: c.ProcRoot, SysRoot: c.SysRoot, DevRoot: cmp.Or(c.DevRoot, c.ContainerDriverRoot),
		}),
		XIDs: kubeletplugin.XIDOptions{
			Watcher: xids, Library: library, ProcRoot: c.ProcRoot, SysRoot: c.SysRoot, Event: health.Event, Refused: health.Refused, Ignore: c.XIDs.Ignore,
		},
		Usage:         usage,
		ClaimsChanged: seconds.Changed,
		VanishedGrace: c.VanishedClaimGrace, Idle: freeMemory, Reconcile: executor.NewSettings(machine, engine, scans.Snapshot, gpuSettings...).Reconcile, Background: background,
	}).Run(ctx)
}

// capability returns the device node of a partition's compute instance. It is empty if the partition does not exist.
func capability(root *driverroot.Root) func(plan.Device) (string, error) {
	return func(d plan.Device) (string, error) {
		node, err := root.ComputeCapability(driverDevice(d))
		if errors.Is(err, driverroot.ErrNoPartition) || errors.Is(err, driverroot.ErrNoGPU) {
			return "", nil
		}
		return node, err
	}
}

// version is set by the build.
var version = "unknown"

func main() { envflags.Main(run) }
