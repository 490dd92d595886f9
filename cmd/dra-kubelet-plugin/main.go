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
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/cmd/envflags"
	"gpu-dra-driver/cmd/setup"
	"gpu-dra-driver/internal/computepolicy"
	"gpu-dra-driver/internal/driverprogram"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/claim/executor/mps"
	"gpu-dra-driver/pkg/claim/executor/reset"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
)

// run is the program. It returns 0 after a signal, 1 after an error, and 2 for an invalid command line.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	c, err := flags.Parse(args, environ)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, "dra-kubelet-plugin publishes a node's NVIDIA GPUs and prepares them for the pods that "+
			"claim them.\n\n"+envflags.Usage(flags.New(new(flags.Config))))
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

// tuneMemory trades processor time, which the plugin rarely needs, for a small heap. An operator's own setting has
// priority.
func tuneMemory(environ []string) {
	const gcPercent = 50
	if !slices.ContainsFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, "GOGC=") }) {
		debug.SetGCPercent(gcPercent)
	}
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

// serve constructs the plugin and runs it until the context ends.
func serve(ctx context.Context, c flags.Config, machine *host.Host) error {
	d, err := newDriver(ctx, c, machine)
	if err != nil {
		return err
	}
	stop, err := serveHTTP(c, d.metrics)
	if err != nil {
		return err
	}
	defer stop()
	plugin, err := d.newPlugin()
	if err != nil {
		return err
	}
	return plugin.Run(ctx)
}

// driver holds the parts of the plugin.
type driver struct {
	*node
	gpus         *gpus
	sharing      *sharingSettings
	claims       *claims
	faults       *faults
	measurements *measurements
	instance     *host.Instance
	rebound      *rebound
}

func newDriver(ctx context.Context, c flags.Config, machine *host.Host) (*driver, error) {
	n, err := newNode(c, machine)
	if err != nil {
		return nil, err
	}
	g, err := newGPUs(n)
	if err != nil {
		return nil, err
	}
	s := newSharingSettings(c, n.events, n.changed, newDemand(ctx, n))
	claims, err := newClaims(n, g, s)
	if err != nil {
		return nil, err
	}
	f, err := newFaults(n)
	if err != nil {
		return nil, err
	}
	instance, err := machine.Enlist(ctx, filepath.Join(dataDir(c), "instance.lock"))
	if err != nil {
		return nil, fmt.Errorf("enlist as an instance of the plugin: %w", err)
	}
	m := newMeasurements(n, g, s, claims, instance)
	n.metrics.CollectRecords(claims.engine.View(), m.usage.Users, m.sampler.Snapshot)
	n.metrics.CollectHealth(g.scans, claims.engine.View(), f.tracker.Last)
	n.metrics.CollectStuck(claims.mig)
	n.metrics.CollectHolders(m.holders, g.scans)
	n.metrics.CollectUsage(m.meter)
	return &driver{n, g, s, claims, f, m, instance, &rebound{notify.NewTrigger()}}, nil
}

func (d *driver) newPlugin() (*kubeletplugin.Plugin, error) {
	settings, err := d.newSettings()
	if err != nil {
		return nil, err
	}
	limits := ""
	if d.ContainerMemoryLimits {
		limits = d.cgroups
	}
	scanner := inventory.New(inventory.Options{
		Library:       d.gpus.library,
		Scans:         d.gpus.scans,
		Trigger:       d.gpus.scan,
		Switches:      d.gpus.switches,
		Interconnects: d.claims.mig,
		Health:        d.faults.tracker,
		ProcRoot:      d.ProcRoot,
		SysRoot:       d.SysRoot,
		Cgroups:       limits,
		Host:          d.machine,
		File:          filepath.Join(stateDir(d.Config), "gpus.json"),
		DevRoot:       cmp.Or(d.DevRoot, driverprogram.DevRoot(d.ContainerDriverRoot)),
	})
	readiness := publishing.NewReadiness(d.gpus.root, d.events, d.changed)
	published := publishing.NewNode(d.NodeName, d.changed, publishing.NodeOptions{
		Settings:      d.Settings,
		Sharing:       d.sharing,
		AdoptExternal: d.AdoptExternalMIG,
		Modes:         d.claims.mig,
		DevicePlugins: d.gpus.devicePlugins,
		Holders:       d.measurements.holders,
		Cordoned:      d.cordons,
		Readiness:     readiness,
		Records:       d.claims.engine.View(),
		Reports:       d.events,
	})
	return kubeletplugin.New(d.claims.engine, published, d.events, d.metrics, kubeletplugin.Options{
		Driver:           d.DriverName,
		Node:             d.NodeName,
		PodUID:           d.PodUID,
		DataDir:          dataDir(d.Config),
		RegistrarDir:     d.KubeletRegistrarDir,
		HealthcheckPort:  d.HealthcheckPort,
		Client:           d.client,
		Inventory:        scanner,
		Instance:         d.instance,
		SchedulerVersion: d.Scheduler,
		DevicePlugins:    d.gpus.devicePlugins,
		Usage:            d.measurements.usage,
		VanishedGrace:    d.VanishedClaimGrace,
		Settings:         settings,
		Rebound:          d.rebound.Trigger,
		ClaimsChanged:    d.measurements.meter.Changed,
		XIDs: kubeletplugin.XIDOptions{
			Library:  d.gpus.library,
			ProcRoot: d.ProcRoot,
			SysRoot:  d.SysRoot,
			Locks:    d.gpus.watcher,
			Health:   d.faults.tracker,
			Polls:    d.gpus.xids,
			Ignore:   d.XIDs.Ignore,
		},
		Background: append(d.background(), readiness),
	}), nil
}

// newSettings restores the settings of GPUs that no claim needs.
func (d *driver) newSettings() (*executor.Settings, error) {
	settings := []executor.Setting{d.claims.mig.Setting(d.MIGModeIdle), d.claims.mps.Setting(),
		d.claims.timeSlice.Setting(), d.claims.mig.StuckSetting()}
	if d.cgroups != "" {
		settings = append(settings, d.claims.limiter.Setting())
	}
	if d.HealthReset == flags.ResetWhenIdle {
		attempts, err := openRecords(d.machine, d.Config, reset.Setting)
		if err != nil {
			return nil, err
		}
		resets := reset.New(reset.Options{
			Faults:        d.faults.records,
			Attempts:      attempts,
			SMI:           computepolicy.SMI{Root: d.ContainerDriverRoot},
			Health:        d.faults.tracker,
			DevicePlugins: d.gpus.devicePlugins,
			Usage:         d.measurements.usage,
			Switches:      d.gpus,
			ProcRoot:      d.ProcRoot,
			Clock:         d.machine,
			Reports:       d.events,
		})
		settings = append(settings, resets.Setting())
	}
	return executor.NewSettings(d.machine, d.claims.engine, d.gpus.scans, settings...), nil
}

func (d *driver) background() []kubeletplugin.Runner {
	out := []kubeletplugin.Runner{d.rebound, d.cordons, d.sharing,
		d.measurements.meter, d.measurements.holders, d.claims.hook}
	if measured(d.Config) {
		out = append(out, d.measurements.sampler)
	}
	if d.sharing.asked != nil {
		out = append(out, d.sharing.asked)
	}
	if d.KernelLog != "" {
		out = append(out, newKernelLog(d.node, d.gpus, d.faults, d.instance))
	}
	if d.cgroups != "" {
		out = append(out, d.claims.limiter)
	}
	if d.MPSDir != "" {
		out = append(out, mps.NewWatcher(d.claims.mps, d.claims.engine.View(), d.events))
	}
	return out
}

// rebound is fired after an event of the kernel about the driver or its GPUs. The plugin compares device numbers at
// intervals too.
type rebound struct{ notify.Trigger }

func (r *rebound) Run(ctx context.Context) {
	if err := host.Uevents(ctx, r.Fire); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "A reload of the driver is noticed some seconds later")
	}
}

// version is set by the build.
var version = "unknown"

func main() { envflags.Main(run) }
