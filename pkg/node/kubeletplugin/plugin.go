// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/claim/executor"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/health/watcher"
	"gpu-dra-driver/pkg/node/kubeletplugin/podresources"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// Options configures a Plugin. PodUID, SchedulerVersion, ClaimsChanged and Background are optional.
type Options struct {
	Driver, Node string
	// PodUID allows two instances at once; it is empty for a single one.
	PodUID string
	// DataDir holds the plugin's socket, RegistrarDir the socket for the kubelet. Both must exist.
	DataDir, RegistrarDir string
	// HealthcheckPort is the TCP port of the health service, negative for none.
	HealthcheckPort int
	Client          kubernetes.Interface
	Inventory       *inventory.Inventory
	// Instance publishes while it is the newest.
	Instance *host.Instance
	// SchedulerVersion is passed to publishing.Options.
	SchedulerVersion schedulerfault.Version
	DevicePlugins    *podresources.DevicePlugins
	// Usage reports whether a deleted claim is still in use. VanishedGrace is how long a claim must be deleted before
	// the plugin releases its devices without an Unprepare.
	Usage         devicestate.Usage
	VanishedGrace time.Duration
	// Settings restores GPU settings that no claim needs, after releases and at intervals.
	Settings *executor.Settings
	XIDs     XIDOptions
	// Rebound is fired after the kernel may have changed device numbers. The plugin fires it after scans.
	Rebound notify.Trigger
	// ClaimsChanged is fired after each preparation and release. Default: none.
	ClaimsChanged notify.Trigger
	// Background runs concurrently until its context ends.
	Background []Runner
}

// Runner is work in the background.
type Runner interface {
	// Run works until the context ends.
	Run(ctx context.Context)
}

type Plugin struct {
	o         Options
	node      *publishing.Node
	publisher *publishing.Publisher
	events    *reporting.Events
	status    *reporting.ClaimStatus
	lost      *reporting.LostPartitions
	faults    *reporting.Faults
	xids      *reporting.XIDs
	watcher   *watcher.Watcher
	metrics   *metrics.Metrics
	recovery  *recovery
	calls     *calls
	service   *service
	fatal     fatal
}

// fatal receives the first error that ends Run, so that the kubelet starts a new process.
type fatal chan error

func (f fatal) fail(err error) {
	select {
	case f <- err:
	default:
	}
}

// changes notifies other parts of prepared and released claims.
type changes struct {
	node    *publishing.Node
	watcher *watcher.Watcher
	claims  notify.Trigger
	// unneeded requests a restoration of settings.
	unneeded notify.Trigger
}

// prepared is called after the preparation of a claim's devices.
func (c *changes) prepared(devices []devicestate.PreparedDevice) {
	c.node.Prepared(devices)
	c.changed()
}

// released is called after the release of a claim's devices.
func (c *changes) released() {
	c.node.Released()
	c.changed()
	c.unneeded.Fire()
}

func (c *changes) changed() {
	c.watcher.Changed()
	c.claims.Fire()
}

const (
	// readyLimit limits a Prepare's wait for recovery and the first scan after a start. Then the kubelet gets the
	// reason and repeats the call.
	readyLimit = 10 * time.Second
	// kubeletLimit limits its wait for the kubelet's first answer about device plugins, without which only new claims
	// are refused.
	kubeletLimit = 3 * time.Second
	// stopLimit limits the wait for background work.
	stopLimit = 2 * time.Second
	// healthInterval is below the 30 s after which the kubelet considers the health unknown.
	healthInterval = 10 * time.Second
)

func New(
	engine *devicestate.Engine, node *publishing.Node, events *reporting.Events, m *metrics.Metrics, o Options,
) *Plugin {
	claims := lookup{o.Client.ResourceV1()}
	p := &Plugin{o: o, node: node, events: events, metrics: m, fatal: make(fatal, 1)}
	p.publisher = publishing.New(node, publishing.Options{
		Client: o.Client, Driver: o.Driver, Node: o.Node, Instance: o.Instance, Metrics: m,
		SchedulerVersion: o.SchedulerVersion, Reports: events,
	})
	p.status = reporting.NewClaimStatus(o.Client, o.Driver, m)
	reported := reporting.NewClaims(engine, claims, events, p.status, m)
	p.lost = reporting.NewLostPartitions(reported, node.Missing)
	p.faults = reporting.NewFaults(reported, node.Faulty)
	p.xids = reporting.NewXIDs(reported, o.Inventory.Scans)
	p.watcher = watcher.New(watcher.Options{
		Library:  o.XIDs.Library,
		ProcRoot: o.XIDs.ProcRoot,
		SysRoot:  o.XIDs.SysRoot,
		Locks:    o.XIDs.Locks,
		Records:  engine.View(),
		Receiver: &xids{p.xids, m, o.XIDs.Health, o.XIDs.Ignore},
		XIDs:     o.XIDs.Polls,
		Poll:     o.Inventory.Trigger,
	})
	changes := &changes{node, p.watcher, o.ClaimsChanged, notify.NewTrigger()}
	p.recovery = newRecovery(engine, claims, events, m, changes, p.fatal, o)
	p.calls = newCalls(m, node.Changed)
	p.service = &service{
		engine:        engine,
		claims:        claims,
		metrics:       m,
		events:        events,
		status:        p.status,
		recovery:      p.recovery,
		inventory:     o.Inventory,
		devicePlugins: o.DevicePlugins.Answered(),
		publisher:     p.publisher,
		changes:       changes,
		fatal:         p.fatal,
	}
	return p
}

// Run serves the kubelet and publishes until the context ends. Then it lets calls in flight complete and returns nil.
// It returns an error if only a new process can help: sockets cannot be opened, or the driver was replaced.
func (p *Plugin) Run(ctx context.Context) error {
	// Calls in flight need the background work even after the context's end.
	background, stopBackground := context.WithCancelCause(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	defer func() {
		stopBackground(errStopping)
		ended := make(chan struct{})
		go func() {
			wg.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(stopLimit): // A hanging NVML call cannot be stopped.
		}
	}()
	working, stopWorking := context.WithCancel(ctx)
	defer stopWorking()
	start := func(ctx context.Context, work ...func(context.Context)) {
		for _, w := range work {
			wg.Go(func() { w(ctx) })
		}
	}
	start(background, p.events.Run, p.status.Run)
	if err := p.alone(ctx); err != nil {
		return err
	}
	start(working, p.watchInventory, p.publisher.Run, p.recovery.run, p.recovery.watchClaims, p.recovery.watchSettings,
		p.watchOther, p.lost.Run, p.faults.Run, p.xids.Run, p.watcher.Run)
	for _, work := range append(p.o.Background, p.o.DevicePlugins) {
		start(working, func(ctx context.Context) { reporting.Protect(p.metrics, func() { work.Run(ctx) }) })
	}

	helper, err := p.serve(background)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if p.o.HealthcheckPort >= 0 {
		stop, err := serveHealth(p.o.HealthcheckPort, p.socket(), p.registrar(), &p.calls.registered)
		if err != nil {
			return err
		}
		defer stop()
	}
	select {
	case <-ctx.Done():
	case err = <-p.fatal:
	}
	stopWorking()
	p.calls.drain(background)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (p *Plugin) watchInventory(ctx context.Context) {
	_ = p.o.Inventory.Watch(ctx, func(s gpu.Snapshot, err error) {
		reporting.Protect(p.metrics, func() {
			if err := p.node.Found(ctx, s, err); err != nil {
				p.fatal.fail(err)
			}
			p.o.Rebound.Fire()
		})
	})
}

// serve opens the sockets, so that the kubelet finds and registers the plugin.
func (p *Plugin) serve(ctx context.Context) (*draplugin.Helper, error) {
	options := []draplugin.Option{
		draplugin.DriverName(p.o.Driver), draplugin.NodeName(p.o.Node), draplugin.KubeClient(p.o.Client),
		draplugin.PluginDataDirectoryPath(p.o.DataDir), draplugin.RegistrarDirectoryPath(p.o.RegistrarDir),
		// The engine has locks for each claim and GPU, across processes, instead of one for the node.
		draplugin.Serialize(false), draplugin.GRPCInterceptor(p.calls.intercept),
	}
	if p.o.PodUID != "" {
		options = append(options, draplugin.RollingUpdate(types.UID(p.o.PodUID)))
	}
	removeStale(ctx, p.o.DataDir, p.o.RegistrarDir, p.o.Driver)
	helper, err := draplugin.Start(ctx, p.service, options...)
	if err != nil {
		return nil, fmt.Errorf("serve the kubelet: %w", err)
	}
	return helper, nil
}

// socket returns the path of the helper's socket.
func (p *Plugin) socket() string {
	if p.o.PodUID != "" {
		return filepath.Join(p.o.DataDir, "dra-"+p.o.PodUID+".sock")
	}
	return filepath.Join(p.o.DataDir, "dra.sock")
}

// registrar returns the path of the helper's socket for the kubelet's registration.
func (p *Plugin) registrar() string {
	file := p.o.Driver + "-reg.sock"
	if p.o.PodUID != "" {
		file = draplugin.RollingUpdateRegistrarSocketFile(p.o.RegistrarDir, p.o.Driver, types.UID(p.o.PodUID))
	}
	return filepath.Join(p.o.RegistrarDir, file)
}
