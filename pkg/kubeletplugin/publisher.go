// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	resourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	draplugin "k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"gpu-dra-driver/pkg/metrics"
	"gpu-dra-driver/pkg/resourceslices"
)

const (
	// successionCheck is how often an instance asks whether it is still the newest.
	successionCheck = 2 * time.Second
	// rebuildEvery makes up for whatever nobody poked about: a record that the other instance wrote.
	rebuildEvery = time.Minute
	// probeEvery is how often lost features are looked for again, after an upgrade of the API server.
	probeEvery = time.Hour
)

// publisherOptions are a publisher's.
type publisherOptions struct {
	client kubernetes.Interface
	// versions reaches the version of the API that the server has.
	versions           resourcev1.ResourceSlicesGetter
	driver, node, pool string
	// newest says whether this instance is the one to publish.
	newest func(context.Context) (bool, error)
	// build makes the slices for a server with these features; false: nothing is known yet.
	build   func(features) ([]resourceslice.Slice, bool)
	metrics *metrics.Metrics
}

// publisher keeps the node's ResourceSlices as they should be, while this instance is the newest.
type publisher struct {
	publisherOptions
	poked chan struct{}

	mu       sync.Mutex
	features features
	desired  []resourceslice.Slice
	session  *publishing
}

func newPublisher(o publisherOptions) *publisher {
	return &publisher{publisherOptions: o, poked: make(chan struct{}, 1), features: allFeatures}
}

// poke has the slices built again and compared with what is published, soon.
func (p *publisher) poke() {
	select {
	case p.poked <- struct{}{}:
	default:
	}
}

// health is that of the devices last built: those with the taint of unhealthy ones are.
func (p *publisher) health(now time.Time) []draplugin.DeviceHealth {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []draplugin.DeviceHealth
	for _, s := range p.desired {
		for _, d := range s.Devices {
			h := draplugin.DeviceHealth{PoolName: p.pool, DeviceName: d.Name, Health: draplugin.HealthStatusHealthy, LastUpdated: now}
			for _, taint := range d.Taints {
				if taint.Key == resourceslices.UnhealthyTaint && taint.Value != string(resourceslices.Withheld) {
					h.Health, h.Message = draplugin.HealthStatusUnhealthy, "the driver says: "+taint.Value
				}
			}
			out = append(out, h)
		}
	}
	return out
}

// run publishes until the context ends.
func (p *publisher) run(ctx context.Context) {
	defer p.retire()
	succession := time.NewTicker(successionCheck)
	defer succession.Stop()
	rebuild := time.NewTicker(rebuildEvery)
	defer rebuild.Stop()
	probe := time.NewTicker(probeEvery)
	defer probe.Stop()
	p.succeed(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-succession.C:
			p.succeed(ctx)
		case <-probe.C:
			p.learn(ctx)
			p.update()
		case <-rebuild.C:
			p.update()
		case <-p.poked:
			p.update()
		}
	}
}

// succeed starts publishing where this instance is the newest, and stops where it is not.
func (p *publisher) succeed(ctx context.Context) {
	newest, err := p.newest(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot tell whether another instance of the plugin is newer; going on as before")
		return
	}
	p.mu.Lock()
	running := p.session != nil
	p.mu.Unlock()
	switch {
	case newest && !running:
		session := p.publish(ctx)
		p.mu.Lock()
		p.session = session
		p.mu.Unlock()
		// First what the server has: on one without counters, devices that overlap must not be out even for a moment.
		p.learn(ctx)
		p.update()
	case !newest && running:
		klog.FromContext(ctx).Info("A newer instance of the plugin is here and publishes from now on")
		p.retire()
	}
}

func (p *publisher) retire() {
	p.mu.Lock()
	session := p.session
	p.session = nil
	p.mu.Unlock()
	if session != nil {
		session.stop()
		p.metrics.Unpublished()
	}
}

// update builds the slices and hands them to the controller, which writes what differs.
func (p *publisher) update() {
	p.mu.Lock()
	f, session := p.features, p.session
	p.mu.Unlock()
	var slices []resourceslice.Slice
	ok := false
	protect(p.metrics, func() { slices, ok = p.build(f) })
	if !ok {
		return
	}
	p.mu.Lock()
	p.desired = slices
	p.mu.Unlock()
	if session != nil {
		session.want(&resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{p.pool: {Slices: slices}}})
	}
}

// synced hears that the API server holds what was wanted.
func (p *publisher) synced() {
	p.mu.Lock()
	devices := map[string]int{}
	for _, s := range p.desired {
		for _, d := range s.Devices {
			if kind := d.Attributes["type"].StringValue; kind != nil {
				devices[*kind]++
			}
		}
	}
	p.mu.Unlock()
	p.metrics.Published(time.Now(), devices)
}

// failed hears of the controller's errors.
func (p *publisher) failed(ctx context.Context, err error, msg string) {
	logger := klog.FromContext(ctx)
	if ctx.Err() != nil {
		return
	}
	var dropped *resourceslice.DroppedFieldsError
	switch {
	case errors.As(err, &dropped):
		p.metrics.PublishFailed("DroppedFields")
		kept := kept(dropped.DesiredSlice, dropped.ActualSlice)
		p.mu.Lock()
		was := p.features
		p.features = p.features.and(kept)
		changed := p.features != was
		p.mu.Unlock()
		logger.Error(err, "The API server lacks features; publishing what is safe without them",
			"deviceTaints", kept.taints, "consumableCapacity", kept.sharedDevices,
			"partitionableDevices", kept.counters)
		if changed {
			p.poke()
		}
	case apierrors.IsInvalid(err) || msg == "pool validation failed":
		p.metrics.PublishFailed("Invalid")
		p.mu.Lock()
		content, _ := json.Marshal(p.desired) // API types always encode.
		p.mu.Unlock()
		logger.Error(err, "The slices are not valid; please report this", "slices", string(content))
	default:
		p.metrics.PublishFailed("Failed")
		logger.Error(err, "Publishing failed and is tried again", "during", msg)
	}
}

// learn asks the server which features it has. Without an answer, what it drops will tell.
func (p *publisher) learn(ctx context.Context) {
	f, err := probeFeatures(ctx, p.versions, p.driver, p.node, p.pool)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot ask the API server for its features; what it drops will tell", "err", err)
		return
	}
	p.mu.Lock()
	changed := p.features != f
	p.features = f
	p.mu.Unlock()
	if changed {
		klog.FromContext(ctx).Info("Features of the API server", "deviceTaints", f.taints, "consumableCapacity", f.sharedDevices,
			"partitionableDevices", f.counters)
	}
}

// slicesOf are the library's slices.
func slicesOf(slices []resourceslices.Slice) []resourceslice.Slice {
	out := make([]resourceslice.Slice, len(slices))
	for i, s := range slices {
		out[i] = resourceslice.Slice{Devices: s.Devices, SharedCounters: s.SharedCounters}
	}
	return out
}
