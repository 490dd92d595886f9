// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"gpu-dra-driver/pkg/claim/claimerror"
)

// staleAge is the minimum age of a stale socket, because a socket in creation refuses connections too.
const staleAge = 30 * time.Second

// removeStale removes the sockets of killed instances. Their names hold the UID of a pod that never returns, and the
// kubelet would keep trying to register them.
func removeStale(ctx context.Context, dataDir, registrarDir, driver string) {
	data, _ := filepath.Glob(filepath.Join(dataDir, "dra-*.sock")) // The pattern is valid.
	registrar, _ := filepath.Glob(filepath.Join(registrarDir, "*-reg.sock"))
	for _, socket := range append(data, registrar...) {
		if filepath.Dir(socket) == filepath.Clean(registrarDir) &&
			!strings.HasPrefix(filepath.Base(socket), driver+"-") {
			continue // It belongs to another driver.
		}
		info, err := os.Lstat(socket)
		// A time in the future is of a clock that was set back since.
		if err != nil || info.Mode()&os.ModeSocket == 0 || time.Since(info.ModTime()).Abs() < staleAge {
			continue
		}
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = conn.Close()
			continue
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = os.Remove(socket)
			klog.FromContext(ctx).Info("Removing the socket of a killed instance", "socket", socket, "err", err)
		}
	}
}

// otherDriver returns the socket by which another driver registers under this driver's name, or "". The sockets of this
// driver's instances have the UIDs of their pods in their names. Only a listener is a driver: with an error, such as
// without a free file descriptor, it is unknown whether there is one.
func otherDriver(ctx context.Context, registrarDir, driver string) (string, error) {
	socket := filepath.Join(registrarDir, driver+"-reg.sock")
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		_ = conn.Close()
		return socket, nil
	case errors.Is(err, syscall.EAGAIN): // The listener's queue is full.
		return socket, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return "", nil // A file without a listener is of a driver that ended.
	}
	return "", fmt.Errorf("look for another driver: %w", err)
}

// errOther is the error for another driver's socket.
func (p *Plugin) errOther(socket string) error {
	return &claimerror.Error{
		Reason:  claimerror.DeviceInUse,
		Attempt: "serve the kubelet",
		Cause: fmt.Errorf("another DRA driver is registered as %s, by %s: both would publish the node's GPUs, and "+
			"get each other's claims", p.o.Driver, socket),
		Remedy: "remove the other driver from the node, such as NVIDIA's, which the GPU operator installs for a " +
			"GPUCluster; or keep this one off the node (chart value kubeletPlugin.nodeSelector)",
	}
}

const (
	// otherInterval is the interval of checks for another driver, and otherLimit the time in which it can end at a
	// start.
	otherInterval, otherLimit = 2 * time.Second, 10 * time.Second
)

// alone waits until no other driver is registered, but not for long. Then watchOther finds the unknown one.
func (p *Plugin) alone(ctx context.Context) error {
	if p.o.PodUID == "" {
		return nil // Its own sockets have those names.
	}
	for end := time.Now().Add(otherLimit); ; {
		socket, unknown := otherDriver(ctx, p.o.RegistrarDir, p.o.Driver)
		late := time.Now().After(end)
		switch {
		case socket != "":
			err := p.errOther(socket)
			p.events.Report(err)
			if late {
				return err
			}
		case unknown == nil || late:
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(otherInterval):
		}
	}
}

// watchOther ends the process when another driver has registered, so that this one stops publishing.
func (p *Plugin) watchOther(ctx context.Context) {
	if p.o.PodUID == "" {
		return
	}
	seen := 0
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		socket, err := otherDriver(ctx, p.o.RegistrarDir, p.o.Driver)
		switch {
		case socket != "":
			if seen++; seen == 2 {
				err := p.errOther(socket)
				p.events.Report(err)
				p.fatal.fail(err)
			}
		case err == nil:
			seen = 0
		}
	}, otherInterval)
}

// healthcheck answers probes. The plugin is healthy if the kubelet registered it, its sockets exist and its own one
// answers. Connections outlive a removed socket, and only a new process makes sockets again.
type healthcheck struct {
	healthpb.UnimplementedHealthServer
	registered *atomic.Bool
	kubelet    drapb.DRAPluginClient
	sockets    []string
}

// serveHealth serves the gRPC health service until stop is called.
func serveHealth(port int, socket, registrar string, registered *atomic.Bool) (stop func(), err error) {
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
	healthpb.RegisterHealthServer(server, &healthcheck{
		registered: registered, kubelet: drapb.NewDRAPluginClient(conn), sockets: []string{socket, registrar},
	})
	go func() {
		if err := server.Serve(listener); err != nil {
			klog.Background().Error(err, "The server of health checks failed")
		}
	}()
	return func() {
		server.Stop()
		_ = conn.Close()
	}, nil
}

// Check implements the health service. It ignores the service name.
func (h *healthcheck) Check(
	ctx context.Context, _ *healthpb.HealthCheckRequest,
) (*healthpb.HealthCheckResponse, error) {
	answer := &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}
	if !h.registered.Load() {
		return answer, nil
	}
	for _, socket := range h.sockets {
		if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "A socket of the plugin was removed; the kubelet cannot reach it")
			return answer, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := h.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}); err != nil {
		klog.FromContext(ctx).Error(err, "The plugin does not answer on its own socket")
		return answer, nil
	}
	answer.Status = healthpb.HealthCheckResponse_SERVING
	return answer, nil
}
