// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// healthcheck answers probes: well is a plugin that the kubelet has registered and that answers on its own socket.
type healthcheck struct {
	healthpb.UnimplementedHealthServer
	registered func() bool
	kubelet    drapb.DRAPluginClient
}

// serveHealth serves the gRPC health service until stop is called.
func serveHealth(port int, socket string, registered func() bool) (stop func(), err error) {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen for health checks: %w", err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("reach the plugin's own socket: %w", err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, &healthcheck{registered: registered, kubelet: drapb.NewDRAPluginClient(conn)})
	go func() {
		if err := server.Serve(listener); err != nil {
			klog.Background().Error(err, "Health checks are not answered any more")
		}
	}()
	return func() {
		server.Stop()
		_ = conn.Close()
	}, nil
}

// Check implements the health service; every service name means the plugin.
func (h *healthcheck) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if !h.registered() {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := h.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}); err != nil {
		klog.FromContext(ctx).Error(err, "The plugin does not answer on its own socket")
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}
