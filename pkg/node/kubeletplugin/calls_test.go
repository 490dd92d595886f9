// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpu-dra-driver/internal/notify"
	env "gpu-dra-driver/internal/testing/kubeletplugintest"
)

const prepareMethod = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"

var oneClaim = &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Uid: "u"}}}

func call(c *calls, req any, handler grpc.UnaryHandler) error {
	_, err := c.intercept(context.Background(), req, &grpc.UnaryServerInfo{FullMethod: prepareMethod}, handler)
	return err
}

func TestCalls_Panic_IsTheCallsError(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := newCalls(e.Metrics, nil)
	err := call(c, oneClaim, func(context.Context, any) (any, error) { panic("kubeletplugin.secret") })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("the call ended with %v", err)
	}
	e.Metric(`nvidia_dra_requests_total{driver="gpu.nvidia.com",operation="prepare",result="error"} 1`)
	e.Metric(`nvidia_dra_requests_inflight{driver="gpu.nvidia.com",operation="prepare"} 0`)
	c.drain(t.Context()) // Hangs if the call still counts as in flight.
}

func TestCalls_HealthProbe_IsNotCounted(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := newCalls(e.Metrics, nil)
	for _, req := range []any{&drapb.NodePrepareResourcesRequest{}, &drapbv1beta1.NodePrepareResourcesRequest{}} {
		if err := call(c, req, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
			t.Error(err)
		}
	}
	e.Metric(`nvidia_dra_requests_total{driver="gpu.nvidia.com",operation="prepare",result="success"} 0`)
}

func TestCalls_ClaimFails_CountsAnErrorInEachVersion(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := newCalls(e.Metrics, nil)
	for _, req := range []any{oneClaim, &drapbv1beta1.NodePrepareResourcesRequest{Claims: []*drapbv1beta1.Claim{{Uid: "u"}}}} {
		if err := call(c, req, func(ctx context.Context, _ any) (any, error) { noteFailure(ctx); return nil, nil }); err != nil {
			t.Error(err)
		}
	}
	e.Metric(`nvidia_dra_requests_total{driver="gpu.nvidia.com",operation="prepare",result="error"} 2`)
}

func TestCalls_RegistrationStatus_IsFollowed(t *testing.T) {
	t.Parallel()
	registered := 0
	c := newCalls(nil, notify.NewTrigger())
	info := &grpc.UnaryServerInfo{FullMethod: "/pluginregistration.Registration/NotifyRegistrationStatus"}
	for _, tc := range []struct {
		status bool
		want   int
	}{{true, 1}, {false, 1}, {true, 2}} {
		req := &registerapi.RegistrationStatus{PluginRegistered: tc.status}
		if _, err := c.intercept(t.Context(), req, info, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.publish:
			registered++
		default:
		}
		if c.registered.Load() != tc.status || registered != tc.want {
			t.Errorf("after %v: registered %v, notified %d times", tc.status, c.registered.Load(), registered)
		}
	}
}

func TestDrain_CallInFlight_FinishesAndOthersAreRefused(t *testing.T) {
	t.Parallel()
	e := env.New(t)
	c := newCalls(e.Metrics, nil)
	entered, release, answered := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		answered <- call(c, oneClaim, func(ctx context.Context, _ any) (any, error) {
			close(entered)
			<-release
			return nil, context.Cause(ctx)
		})
	}()
	<-entered
	drained := make(chan struct{})
	go func() {
		c.drain(context.Background())
		close(drained)
	}()
	e.Eventually("another call is refused", func() (bool, string) {
		err := call(c, oneClaim, func(context.Context, any) (any, error) { return nil, nil })
		return status.Code(err) == codes.Unavailable, fmt.Sprint(err)
	})
	select {
	case <-drained:
		t.Fatal("drained with a call in flight")
	default:
	}
	close(release)
	if err := <-answered; err != nil {
		t.Errorf("the call that was in flight: %v", err)
	}
	<-drained
}

func TestDrain_CallHangs_IsCanceled(t *testing.T) {
	t.Parallel()
	c := newCalls(env.New(t).Metrics, nil)
	entered, answered := make(chan struct{}), make(chan error, 1)
	go func() {
		answered <- call(c, oneClaim, func(ctx context.Context, _ any) (any, error) {
			close(entered)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
	}()
	<-entered
	began := time.Now()
	c.drain(context.Background())
	if took := time.Since(began); took < drainGrace || took > drainLimit-time.Second {
		t.Errorf("drained after %s", took)
	}
	if err := <-answered; !errors.Is(err, errStopping) {
		t.Errorf("the call received %v", err)
	}
}
