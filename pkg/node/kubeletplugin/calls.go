// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"path"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/node/metrics"
)

// At the end, calls in flight get drainGrace to complete. Then their contexts end, so that they roll back. After
// drainLimit the process exits in any case; the next start recovers from the records.
const (
	drainGrace = 3 * time.Second
	drainLimit = 5 * time.Second
)

var errStopping = errors.New("the plugin is stopping")

// calls counts and times the kubelet's calls, and lets them complete when the plugin stops.
type calls struct {
	metrics    *metrics.Metrics
	registered atomic.Bool
	// publish is fired after the kubelet registered the plugin.
	publish notify.Trigger

	mu       sync.Mutex
	stopping bool
	inflight sync.WaitGroup
	// graceCtx ends drainGrace after the start of drain.
	graceCtx context.Context
	cancel   context.CancelCauseFunc
}

func newCalls(m *metrics.Metrics, publish notify.Trigger) *calls {
	c := &calls{metrics: m, publish: publish}
	c.graceCtx, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// intercept is a gRPC interceptor for the DRA service and the registration service.
func (c *calls) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "A bug of the driver stopped a call of the kubelet",
				"method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, status.Error(codes.Internal, "a bug of the driver stopped this call; see the plugin's log")
		}
	}()
	operation := ""
	switch path.Base(info.FullMethod) {
	case "NotifyRegistrationStatus":
		return c.register(ctx, req, handler)
	case "NodePrepareResources":
		operation = metrics.Prepare
	case "NodeUnprepareResources":
		operation = metrics.Unprepare
	default:
		return handler(ctx, req)
	}
	if m, ok := req.(proto.Message); ok && proto.Size(m) == 0 {
		return handler(ctx, req) // A call of the health probe.
	}
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	end := c.metrics.Begin(operation)
	ok, failed := false, new(atomic.Bool)
	defer func() { end(ok) }()
	resp, err = handler(context.WithValue(ctx, failedKey{}, failed), req)
	ok = err == nil && !failed.Load()
	return resp, err
}

func (c *calls) register(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	status, ok := req.(*registerapi.RegistrationStatus)
	registered := ok && status.PluginRegistered
	c.registered.Store(registered)
	if registered {
		c.publish.Fire()
	}
	return resp, err
}

func (c *calls) begin(ctx context.Context) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return nil, nil, status.Error(codes.Unavailable, errStopping.Error()+"; the kubelet repeats the call")
	}
	c.inflight.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	detach := context.AfterFunc(c.graceCtx, func() { cancel(errStopping) })
	return ctx, func() {
		detach()
		cancel(nil)
		c.inflight.Done()
	}, nil
}

// drain refuses new calls and returns when no call is in flight, or at the limit.
func (c *calls) drain(ctx context.Context) {
	c.mu.Lock()
	c.stopping = true
	c.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		c.inflight.Wait()
		close(idle)
	}()
	klog.FromContext(ctx).Info("Stopping")
	select {
	case <-idle:
		return
	case <-time.After(drainGrace):
	}
	c.cancel(errStopping)
	select {
	case <-idle:
	case <-time.After(drainLimit - drainGrace):
		klog.FromContext(ctx).Info("Stopping with calls in flight; the next start recovers their claims")
	}
}

// failedKey is the context key of a call's failure flag. The service sets it for a failed claim, because the type of
// the answer depends on the kubelet's API version.
type failedKey struct{}

func noteFailure(ctx context.Context) {
	if failed, ok := ctx.Value(failedKey{}).(*atomic.Bool); ok {
		failed.Store(true)
	}
}
