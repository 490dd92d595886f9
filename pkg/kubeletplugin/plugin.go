// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	draclient "k8s.io/dynamic-resource-allocation/client"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/claimerror"
	"gpu-dra-driver/pkg/devicestate"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/inventory"
	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/resourceslices"
	"gpu-dra-driver/pkg/sharing"
)

// Options are a Plugin's.
type Options struct {
	Driver, Node string
	// PodUID lets two instances live side by side; empty for one alone.
	PodUID string
	// DataDir holds the plugin's socket, RegistrarDir the one that the kubelet looks for. Both must exist.
	DataDir, RegistrarDir string
	// HealthcheckPort is the TCP port of the health service, negative for none.
	HealthcheckPort int
	// VanishedGrace is how long a claim must be gone before its devices are released unasked.
	VanishedGrace time.Duration
	Client        kubernetes.Interface
	MIG           MIG
	// Offer says what of a GPU, or a MIG profile of it, can be had in shares. Nil: nothing.
	Offer     func(g gpu.GPU, profile string) (sharing.Offer, bool)
	Inventory *inventory.Inventory
	Cadence   inventory.Cadence
	// Idle, if set, is called again and again while the kubelet does not call.
	Idle func()
}

// Parts are what can only be made once the Plugin is there to be told.
type Parts struct {
	Engine  *devicestate.Engine
	Witness devicestate.Usage
	// Served asks the kubelet what device plugins of the node serve. Nil: nobody is asked.
	Served  func(context.Context) (Served, error)
	Metrics *metrics.Metrics
	// Newest says whether this instance is the one to publish.
	Newest func(context.Context) (bool, error)
	// Tidy, if set, is called at intervals to put back what no claim needs any more. Its errors are for a person.
	Tidy func(context.Context) []error
	// Keep, if set, runs beside until the context ends.
	Keep func(context.Context)
}

// Plugin is a kubelet plugin.
type Plugin struct {
	Options
	node *node

	mu     sync.Mutex
	events *events
	early  []error // reports that came before there were events
}

// readyLimit is how long a Prepare waits at start for what it needs; then the kubelet hears why, and asks again.
const readyLimit = 10 * time.Second

// stopLimit bounds the wait for what runs beside the calls.
const stopLimit = 2 * time.Second

// idleAfter is how long no call makes the plugin idle.
const idleAfter = 10 * time.Second

// healthEvery is well within the 30 s after which the kubelet calls health unknown.
const healthEvery = 10 * time.Second

// New makes a Plugin. Its Snapshot and Report are for the engine, with which Run then runs it.
func New(o Options) *Plugin {
	p := &Plugin{Options: o}
	p.node = newNode(o.Node, p.Report)
	p.node.mig, p.node.offer = o.MIG, o.Offer
	return p
}

// Snapshot is the newest look at the node.
func (p *Plugin) Snapshot() gpu.Snapshot { return p.node.current() }

// Republish has what is published built anew: a setting changed.
func (p *Plugin) Republish() { p.node.again() }

// Rival says by what name a device plugin of the node serves the GPU at a PCI address, and is empty where none does.
func (p *Plugin) Rival(address string) string { return p.node.rival(address) }

// Report tells a person of what no caller is told. It does not block.
func (p *Plugin) Report(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.events == nil {
		p.early = append(p.early, err)
		return
	}
	p.events.report(err)
}

// Run serves the kubelet and publishes until the context ends, then lets calls in flight finish and returns nil. An
// error says what cannot be mended in this process: sockets that cannot be had, or a driver that was replaced.
func (p *Plugin) Run(ctx context.Context, parts Parts) error {
	// What must outlast the end of ctx for calls to be drained runs under background.
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
		case <-time.After(stopLimit): // NVML can hang, and nothing stops it.
		}
	}()
	working, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	// The helper's own client is made for the API versions that a server may lack.
	versions := draclient.New(p.Client)
	events := newEvents(p.Client, versions, p.Node, p.Driver, parts.Metrics)
	p.startReports(events)
	publisher := newPublisher(publisherOptions{
		client: p.Client, versions: versions, driver: p.Driver, node: p.Node, pool: resourceslices.PoolName(p.Node),
		newest: parts.Newest, build: p.node.build, metrics: parts.Metrics,
	})
	p.node.holder, p.node.changed = parts.Engine, publisher.poke
	status := newStatusWriter(claimStatuses{p.Client, versions}, p.Driver, parts.Metrics)
	claims := lookup{versions}
	care := newCaretaker(parts.Engine, claims, devicestate.NewDeletedClaims(parts.Engine, claims, parts.Witness, p.VanishedGrace),
		parts.Metrics, events, p.node.released, func(err error) { fail(err) })
	care.rest, care.tidy = p.Idle, parts.Tidy
	losses := newLosses(parts.Engine, claims, events, status, parts.Metrics)
	p.node.suspect = losses.hear
	calls := &calls{metrics: parts.Metrics, onRegister: publisher.poke}
	service := &service{
		engine: parts.Engine, metrics: parts.Metrics, events: events, status: status,
		ready: p.ready(care), released: p.node.released, holds: p.node.holds, absent: p.Inventory.Trigger, health: p.health(publisher),
		failed: func(ctx context.Context, err error, msg string) {
			klog.FromContext(ctx).Error(err, "The helper failed", "during", msg)
			if !errors.Is(err, draplugin.ErrRecoverable) {
				fail(fmt.Errorf("%s: %w", msg, err))
			}
		},
	}

	start := func(ctx context.Context, f func(context.Context)) { wg.Go(func() { f(ctx) }) }
	start(working, func(ctx context.Context) {
		_ = p.Inventory.Watch(ctx, p.Cadence, func(s gpu.Snapshot, err error) {
			protect(parts.Metrics, func() {
				if err := p.node.found(ctx, s, err); err != nil {
					fail(err)
				}
			})
		})
	})
	if parts.Served != nil {
		p.node.mu.Lock()
		p.node.asking = true
		p.node.mu.Unlock()
		start(working, func(ctx context.Context) {
			protect(parts.Metrics, func() { p.node.watchRivals(ctx, parts.Served, parts.Metrics) })
		})
	}
	start(working, publisher.run)
	start(working, care.keepRecovered)
	start(working, care.watchClaims)
	start(working, losses.run)
	if parts.Keep != nil {
		start(working, func(ctx context.Context) { protect(parts.Metrics, func() { parts.Keep(ctx) }) })
	}
	start(working, p.watchIdle(calls))
	start(background, events.run)
	start(background, status.run)

	helper, err := p.serve(background, service, calls)
	if err != nil {
		fail(nil)
		return err
	}
	defer helper.Stop()
	if p.HealthcheckPort >= 0 {
		stop, err := serveHealth(p.HealthcheckPort, p.socket(), calls.registered.Load)
		if err != nil {
			fail(nil)
			return err
		}
		defer stop()
	}
	<-working.Done()
	calls.drain(background)
	if cause := context.Cause(working); ctx.Err() == nil && cause != nil {
		return cause
	}
	return nil
}

// startReports hands on what was reported before there was anybody to tell.
func (p *Plugin) startReports(e *events) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = e
	for _, err := range p.early {
		e.report(err)
	}
	p.early = nil
}

// serve opens the sockets; the kubelet finds them and registers the plugin.
func (p *Plugin) serve(ctx context.Context, s *service, c *calls) (*draplugin.Helper, error) {
	options := []draplugin.Option{
		draplugin.DriverName(p.Driver), draplugin.NodeName(p.Node), draplugin.KubeClient(p.Client),
		draplugin.PluginDataDirectoryPath(p.DataDir), draplugin.RegistrarDirectoryPath(p.RegistrarDir),
		// Locks of our own, per claim and GPU and across processes, instead of one for the node.
		draplugin.Serialize(false), draplugin.GRPCInterceptor(c.intercept),
	}
	if p.PodUID != "" {
		options = append(options, draplugin.RollingUpdate(types.UID(p.PodUID)))
	}
	removeStale(ctx, p.DataDir, p.RegistrarDir, p.Driver)
	helper, err := draplugin.Start(ctx, s, options...)
	if err != nil {
		return nil, fmt.Errorf("serve the kubelet: %w", err)
	}
	return helper, nil
}

// socket is where the helper listens.
func (p *Plugin) socket() string {
	if p.PodUID != "" {
		return filepath.Join(p.DataDir, "dra-"+p.PodUID+".sock")
	}
	return filepath.Join(p.DataDir, "dra.sock")
}

// ready holds a Prepare until what earlier runs left is put right and the node has been looked at.
func (p *Plugin) ready(care *caretaker) func(context.Context) error {
	return func(ctx context.Context) error {
		err := care.waitRecovered(ctx, readyLimit)
		if err == nil {
			err = p.node.waitLooked(ctx, readyLimit)
		}
		if err == nil {
			return nil
		}
		return &claimerror.Error{
			Reason: claimerror.DriverNotReady, Attempt: metrics.Prepare,
			Cause: fmt.Errorf("the plugin has just started: %w", err), Remedy: "it is retried; if it persists, look at the log of the node's kubelet plugin",
		}
	}
}

// watchIdle calls Idle at intervals while the kubelet does not call: the plugin's own rounds take memory too.
func (p *Plugin) watchIdle(c *calls) func(context.Context) {
	return func(ctx context.Context) {
		last := uint64(0)
		for p.Idle != nil && sleep(ctx, idleAfter) {
			now := c.count.Load()
			if now == last {
				p.Idle()
			}
			last = now
		}
	}
}

// health reports every published device, again before the kubelet takes the report for stale.
func (p *Plugin) health(publisher *publisher) func(context.Context, chan<- draplugin.DeviceHealthReport) error {
	return func(ctx context.Context, reports chan<- draplugin.DeviceHealthReport) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case reports <- draplugin.DeviceHealthReport{Devices: publisher.health(time.Now())}:
			}
			if !sleep(ctx, healthEvery) {
				return nil
			}
		}
	}
}
