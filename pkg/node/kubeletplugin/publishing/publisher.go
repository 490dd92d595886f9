// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package publishing

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/node/metrics"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

const (
	// successionInterval is the interval of checks whether this instance is still the newest.
	successionInterval = 2 * time.Second
	// rebuildInterval covers changes without a trigger, such as a record of the other instance. The alert PublishStale
	// waits for three of them.
	rebuildInterval = 5 * time.Minute
	// probeInterval is the interval of feature probes, which notice an upgrade of the API server.
	probeInterval = time.Hour
)

// Options configures a Publisher; all fields but SchedulerVersion are required.
type Options struct {
	Client       kubernetes.Interface
	Driver, Node string
	// Instance publishes while it is the newest.
	Instance *host.Instance
	Metrics  *metrics.Metrics
	// SchedulerVersion is the version of the scheduler; the zero Version means that of the API server.
	SchedulerVersion schedulerfault.Version
	// Reports receives faults of the scheduler.
	Reports notify.Reporter
}

// Publisher keeps the node's ResourceSlices up to date while this instance is the newest.
type Publisher struct {
	o         Options
	pool      string
	node      builder
	triggered notify.Trigger
	session   *session    // Only Run uses it; nil while another instance is newer.
	probed    atomic.Bool // A probe succeeded.
	version   version     // Only Run uses it.
	// reported has the names of the scheduler's faults that were reported. Only Run uses it.
	reported map[string]bool

	// doubted means that the API server refused a write that it accepted as a dry run, or earlier.
	doubted atomic.Bool

	mu       sync.Mutex
	features features
	desired  []resourceslice.Slice
	// published are the slices that the controller writes. kept means that they are earlier ones of the API server,
	// because it refuses the desired ones.
	published []resourceslice.Slice
	kept      bool
}

// builder builds slices; Node implements it.
type builder interface {
	build(features) ([]resourceslice.Slice, bool)
	// cause returns the cause of a device's unhealthy state, or "".
	cause(device, state string) string
	// owner is the Node, see Cordoned.
	owner() (uid types.UID, deleted bool)
}

func New(n *Node, o Options) *Publisher { return newPublisher(n, n.Changed, o) }

func newPublisher(n builder, t notify.Trigger, o Options) *Publisher {
	p := &Publisher{o: o, pool: wire.PoolName(o.Node), node: n, triggered: t, features: allFeatures}
	p.version = version{set: o.SchedulerVersion, now: time.Now,
		server: discovery.ToServerVersionInterfaceWithContext(o.Client.Discovery())}
	return p
}

// Health returns the health of the last built devices. Those with the unhealthy taint are unhealthy, unless it says
// that their health is unknown. So is the health of unmonitored devices.
func (p *Publisher) Health(now time.Time) []draplugin.DeviceHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []draplugin.DeviceHealth
	for _, s := range p.desired {
		for _, d := range s.Devices {
			h := draplugin.DeviceHealth{PoolName: wire.PoolOf(p.o.Node, s.Devices), DeviceName: d.Name,
				Health: draplugin.HealthStatusHealthy, LastUpdated: now}
			for _, taint := range d.Taints {
				if taint.Key == resourceslices.UnmonitoredTaint && h.Health == draplugin.HealthStatusHealthy {
					h.Health, h.Message = draplugin.HealthStatusUnknown, "the GPU's health cannot be read"
				}
				available := slices.Contains([]resourceslices.State{
					resourceslices.Withheld, resourceslices.NoDemand, resourceslices.NotReady,
				}, resourceslices.State(taint.Value))
				if taint.Key != wire.UnhealthyTaint || available {
					continue
				}
				h.Health, h.Message = draplugin.HealthStatusUnhealthy, "the device is tainted as "+taint.Value
				if cause := p.node.cause(d.Name, taint.Value); cause != "" {
					h.Message += ": " + cause
				}
				if taint.Value == string(resourceslices.Unknown) {
					h.Health = draplugin.HealthStatusUnknown
				}
			}
			out = append(out, h)
		}
	}
	return out
}

// Run publishes until the context ends.
func (p *Publisher) Run(ctx context.Context) {
	defer p.retire()
	succession, rebuild, probe := time.Tick(successionInterval), time.Tick(rebuildInterval), time.Tick(probeInterval)
	p.succeed(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-succession:
			p.succeed(ctx)
		case <-probe:
			p.probe(ctx)
			p.update()
		case <-rebuild:
			p.update()
		case <-p.triggered:
			p.update()
		}
	}
}

// succeed starts publishing if this instance is the newest, and stops otherwise.
func (p *Publisher) succeed(ctx context.Context) {
	newest, err := p.o.Instance.Newest()
	node, deleted := p.node.owner()
	if s := p.session; s != nil {
		// The garbage collector would delete the slices of a Node that is gone, and the controller create them again,
		// without end.
		if deleted || s.node != "" && s.node != node {
			klog.FromContext(ctx).Info("The Node was deleted; nothing is published until it is back")
			p.retire()
		} else {
			s.node = node
		}
	}
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err,
			"Cannot find out whether another instance of the plugin is newer; continuing as before")
	case deleted:
	case newest && p.session == nil:
		p.session = p.startSession(ctx)
		p.session.node = node
		// The probe comes first: on a server without counters, overlapping devices must not be published even for a
		// moment.
		p.probe(ctx)
		p.version.update(ctx)
		p.update()
	case newest:
		p.checkVersion(ctx)
	case !newest && p.session != nil:
		klog.FromContext(ctx).Info("A newer instance of the plugin publishes from now on")
		p.retire()
	}
}

// checkVersion builds the slices again if the scheduler's faults may have changed.
func (p *Publisher) checkVersion(ctx context.Context) {
	p.version.update(ctx)
	if p.version.changed() {
		p.update()
	}
}

func (p *Publisher) retire() {
	if p.session != nil {
		p.session.stop()
		p.session = nil
		p.o.Metrics.Unpublished()
	}
}

// update builds the slices and passes them to the controller, which writes the differences.
func (p *Publisher) update() {
	p.mu.Lock()
	f := p.features
	p.mu.Unlock()
	var slices []resourceslice.Slice
	ok := false
	reporting.Protect(p.o.Metrics, func() { slices, ok = p.node.build(p.offered(f)) })
	if !ok {
		return
	}
	p.mu.Lock()
	p.desired = slices
	p.mu.Unlock()
	if p.session != nil {
		p.session.updates.Put(&resourceslice.DriverResources{Pools: p.pools(slices)})
	}
}

// pools divides slices into the node's pools. Without monitor devices their pool does not exist.
func (p *Publisher) pools(slices []resourceslice.Slice) map[string]resourceslice.Pool {
	out := map[string]resourceslice.Pool{p.pool: {}}
	for _, s := range slices {
		name := wire.PoolOf(p.o.Node, s.Devices)
		out[name] = resourceslice.Pool{Slices: append(out[name].Slices, s)}
	}
	return out
}

// synced is called when the API server has the published slices. Those that were kept are not up to date.
func (p *Publisher) synced() {
	p.mu.Lock()
	if p.kept {
		p.mu.Unlock()
		return
	}
	devices := map[string]int{}
	for _, s := range p.published {
		for _, d := range s.Devices {
			if kind := d.Attributes["type"].StringValue; kind != nil {
				devices[*kind]++
			}
		}
	}
	p.mu.Unlock()
	p.o.Metrics.Published(time.Now(), devices)
}

// failed handles the controller's errors.
func (p *Publisher) failed(ctx context.Context, err error, msg string) {
	logger := klog.FromContext(ctx)
	if ctx.Err() != nil {
		return
	}
	if refuses(err) {
		p.doubted.Store(true)
		p.triggered.Fire()
	}
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		p.o.Metrics.PublishFailed("DroppedFields")
		kept := kept(dropped.DesiredSlice, dropped.ActualSlice)
		logger.Error(err, "The API server lacks features; publishing without them", kept.log()...)
		if p.setFeatures(func(f features) features { return f.and(kept) }) {
			p.triggered.Fire()
		}
	case apierrors.IsInvalid(err) || msg == "pool validation failed":
		p.o.Metrics.PublishFailed("Invalid")
		p.mu.Lock()
		content, _ := json.Marshal(p.desired) // API types always encode.
		p.mu.Unlock()
		logger.Error(err, "The API server or an admission policy refuses the slices as invalid; if no policy does, "+
			"please report this", "slices", string(content))
	default:
		p.o.Metrics.PublishFailed("Failed")
		logger.Error(err, "Publishing failed; trying again", "during", msg)
	}
}

// probe asks the server for its features. If that fails, DroppedFieldsErrors show the missing ones.
func (p *Publisher) probe(ctx context.Context) {
	f, err := probeFeatures(ctx, p.o.Client.ResourceV1(), p.o.Driver, p.o.Node, p.pool)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot ask the API server for its features; dropped fields will show them",
			"err", err)
		return
	}
	p.probed.Store(true)
	if p.setFeatures(func(features) features { return f }) {
		klog.FromContext(ctx).Info("Features of the API server", f.log()...)
	}
}

// setFeatures reports whether the features changed.
func (p *Publisher) setFeatures(set func(features) features) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.features
	p.features = set(was)
	return p.features != was
}
