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

	"gpu-dra-driver/pkg/metrics"
)

// Draining: calls in flight get drainPatience to finish, then their contexts end so that they roll back, and after
// drainLimit the process goes whatever they do. Their records say what is left, and the next start undoes it.
const (
	drainPatience = 3 * time.Second
	drainLimit    = 5 * time.Second
)

var errStopping = errors.New("the plugin is stopping")

// calls sees every call of the kubelet: it counts and times them, and lets them finish when the plugin stops.
type calls struct {
	metrics    *metrics.Metrics
	registered atomic.Bool
	count      atomic.Uint64
	// onRegister is called when the kubelet has registered the plugin.
	onRegister func()

	mu       sync.Mutex
	stopping bool
	inflight map[*context.CancelCauseFunc]struct{}
	idle     chan struct{} // made by drain, closed with the last call
}

// intercept is a gRPC interceptor of the DRA and of the registration service.
func (c *calls) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "A call of the kubelet met a bug of the driver", "method", info.FullMethod, "panic", p, "stack", string(debug.Stack()))
			resp, err = nil, status.Error(codes.Internal, "a bug of the driver stopped this call; the plugin's log has the details")
		}
	}()
	operation := ""
	switch path.Base(info.FullMethod) {
	case "NotifyRegistrationStatus":
		return c.notify(ctx, req, handler)
	case "NodePrepareResources":
		operation = metrics.Prepare
	case "NodeUnprepareResources":
		operation = metrics.Unprepare
	default:
		return handler(ctx, req)
	}
	if empty(req) {
		return handler(ctx, req) // The health probe's.
	}
	c.count.Add(1)
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

func (c *calls) notify(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	said, ok := req.(*registerapi.RegistrationStatus)
	registered := ok && said.PluginRegistered
	c.registered.Store(registered)
	if registered && c.onRegister != nil {
		c.onRegister()
	}
	return resp, err
}

func (c *calls) begin(ctx context.Context) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return nil, nil, status.Error(codes.Unavailable, errStopping.Error()+"; the call is repeated")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	key := &cancel
	if c.inflight == nil {
		c.inflight = map[*context.CancelCauseFunc]struct{}{}
	}
	c.inflight[key] = struct{}{}
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.inflight, key)
		if c.idle != nil && len(c.inflight) == 0 {
			close(c.idle)
			c.idle = nil
		}
	}, nil
}

// drain refuses further calls and returns when none is in flight, or at the limit.
func (c *calls) drain(ctx context.Context) {
	c.mu.Lock()
	c.stopping = true
	idle := make(chan struct{})
	if len(c.inflight) == 0 {
		close(idle)
	} else {
		c.idle = idle
	}
	n := len(c.inflight)
	c.mu.Unlock()

	logger := klog.FromContext(ctx)
	logger.Info("Stopping", "callsInFlight", n)
	limit := time.After(drainLimit)
	patience := time.After(drainPatience)
	for {
		select {
		case <-idle:
			return
		case <-patience:
			c.mu.Lock()
			for cancel := range c.inflight {
				(*cancel)(errStopping)
			}
			c.mu.Unlock()
		case <-limit:
			logger.Info("Stopping though calls are in flight; the next start undoes what they left")
			return
		}
	}
}

func empty(req any) bool {
	m, ok := req.(proto.Message)
	return ok && proto.Size(m) == 0
}

// failedKey finds, in the context of a call, where to note that one of its claims failed. The kubelet speaks one of
// several API versions, so the answer is not looked into.
type failedKey struct{}

func noteFailure(ctx context.Context) {
	if failed, ok := ctx.Value(failedKey{}).(*atomic.Bool); ok {
		failed.Store(true)
	}
}
