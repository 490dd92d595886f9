// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	draclient "k8s.io/dynamic-resource-allocation/client"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/cluster/schedulerfault"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin/publishing"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/show/metrics"
)

// Options configures a Plugin. PodUID, SchedulerVersion and Background are optional.
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
	// Newest reports whether this instance should publish.
	Newest func() (bool, error)
	// SchedulerVersion is that of publishing.Options.
	SchedulerVersion schedulerfault.Version
	// Usage reports whether a deleted claim is still in use. VanishedGrace is how long a claim must be deleted before
	// the plugin releases its devices without an Unprepare.
	Usage         devicestate.Usage
	VanishedGrace time.Duration
	// Idle is called when the kubelet has stopped calling and then every minute.
	Idle func()
	// Reconcile restores GPU settings that no claim needs. It is called after releases and at intervals.
	Reconcile func(context.Context) []error
	XIDs      XIDOptions
	// ClaimsChanged is called after the preparation and the release of claims. It must not block. Default: nothing.
	ClaimsChanged func()
	// Background functions run concurrently until their context ends.
	Background []func(context.Context)
}

type Plugin struct {
	o         Options
	node      *publishing.Node
	publisher *publishing.Publisher
	events    *reporting.Events
	status    *reporting.ClaimStatus
	lost      *reporting.LostPartitions
	faults    *reporting.Faults
	xids      *xids
	metrics   *metrics.Metrics
	recovery  *recovery
	calls     *calls
	service   *service
	// fatal receives the first error that ends the process.
	fatal chan error
}

const (
	// readyLimit limits a Prepare's wait for recovery and the first scan after a start. Then the kubelet gets the reason
	// and repeats the call.
	readyLimit = 10 * time.Second
	// stopLimit limits the wait for background work.
	stopLimit = 2 * time.Second
	// idleAfter is the time without calls after which the plugin is idle.
	idleAfter = 10 * time.Second
	// idleAgain is the number of these times after which Idle is called again, because periodic work needs memory too.
	idleAgain = 6
	// healthInterval is below the 30 s after which the kubelet considers the health unknown.
	healthInterval = 10 * time.Second
)

func New(engine *devicestate.Engine, node *publishing.Node, events *reporting.Events, m *metrics.Metrics, o Options) *Plugin {
	if o.ClaimsChanged == nil {
		o.ClaimsChanged = func() {}
	}
	// It detects the API versions of the server.
	versions := draclient.New(o.Client)
	claims := lookup{versions}
	p := &Plugin{o: o, node: node, events: events, metrics: m, fatal: make(chan error, 1)}
	p.publisher = publishing.New(node, publishing.Options{
		Client: o.Client, Versions: versions, Driver: o.Driver, Node: o.Node, Newest: o.Newest, Metrics: m,
		SchedulerVersion: o.SchedulerVersion, Report: events.Report,
	})
	p.status = reporting.NewClaimStatus(o.Client, versions, o.Driver, m)
	p.lost = reporting.NewLostPartitions(engine, claims, events, p.status, m)
	p.faults = reporting.NewFaults(engine, claims, events, p.status, m)
	p.xids = newXIDs(engine, reporting.NewXIDs(engine, claims, events, p.status, m, node.Healthy), m, o)
	p.recovery = newRecovery(engine, claims, events, m, p.released, p.fail, o)
	p.calls = newCalls(m, p.publisher.Trigger)
	p.service = &service{
		engine: engine, claims: claims, metrics: m, events: events, status: p.status, ready: p.ready, prepared: p.prepared,
		released: p.released, absent: o.Inventory.Trigger, health: p.health, fail: p.fail,
	}
	return p
}

// prepared is called after the preparation of a claim's devices.
func (p *Plugin) prepared(devices []devicestate.PreparedDevice) {
	p.node.Prepared(devices)
	p.o.XIDs.Watcher.Changed()
	p.o.ClaimsChanged()
}

// released is called after the release of a claim's devices.
func (p *Plugin) released() {
	p.node.Released()
	p.o.XIDs.Watcher.Changed()
	p.o.ClaimsChanged()
	p.recovery.unneeded.Fire()
}

// fail ends Run, so that the kubelet starts a new process.
func (p *Plugin) fail(err error) {
	select {
	case p.fatal <- err:
	default:
	}
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
	start(working, p.watchInventory, p.publisher.Run, p.recovery.run, p.recovery.watchClaims, p.recovery.watchSettings, p.watchIdle,
		func(ctx context.Context) { p.lost.Run(ctx, p.node.Missing()) },
		func(ctx context.Context) { p.faults.Run(ctx, p.node.Faulty()) },
		p.xids.reports.Run, p.xids.watch)
	for _, work := range p.o.Background {
		start(working, func(ctx context.Context) { reporting.Protect(p.metrics, func() { work(ctx) }) })
	}

	helper, err := p.serve(background)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if p.o.HealthcheckPort >= 0 {
		stop, err := serveHealth(p.o.HealthcheckPort, p.socket(), p.registrar(), p.calls.registered.Load)
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
				p.fail(err)
			}
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

// ready delays a Prepare until the first pass of recovery and the first scan are done.
func (p *Plugin) ready(ctx context.Context) error {
	err := p.recovery.wait(ctx, readyLimit)
	if err == nil {
		err = waitFor(ctx, p.node.Scanned(), readyLimit, fmt.Errorf("NVML has not answered for %s", readyLimit))
	}
	if err == nil {
		return nil
	}
	return &claimerror.Error{
		Reason: claimerror.DriverNotReady, Attempt: metrics.Prepare,
		Cause:  fmt.Errorf("the plugin has just started: %w", err),
		Remedy: "the kubelet retries; if it persists, see the log of the node's kubelet plugin",
	}
}

// waitFor waits until done is closed; at the limit it returns late.
func waitFor(ctx context.Context, done <-chan struct{}, limit time.Duration, late error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watchIdle calls Idle while the kubelet does not call.
func (p *Plugin) watchIdle(ctx context.Context) {
	last, idle := uint64(math.MaxUint64), 0
	wait.UntilWithContext(ctx, func(context.Context) {
		now := p.calls.count.Load()
		if now != last {
			last, idle = now, 0
			return
		}
		if idle%idleAgain == 0 {
			p.o.Idle()
		}
		idle++
	}, idleAfter)
}

// health reports every published device, often enough that the kubelet does not consider a report stale.
func (p *Plugin) health(ctx context.Context, reports chan<- draplugin.DeviceHealthReport) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case reports <- draplugin.DeviceHealthReport{Devices: p.publisher.Health(time.Now())}:
		}
	}, healthInterval)
	return nil
}
