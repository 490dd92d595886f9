// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelettest acts as the kubelet of a running plugin, over the plugin's sockets.
package kubelettest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type Kubelet struct {
	// Info is the plugin's registration info.
	Info *registerapi.PluginInfo

	registration, plugin *grpc.ClientConn
}

// Register waits for a plugin's registration socket in a directory and registers the plugin. It ignores the sockets in
// except.
func Register(ctx context.Context, dir string, except ...string) (*Kubelet, error) {
	socket, err := await(ctx, dir, except)
	if err != nil {
		return nil, err
	}
	k := &Kubelet{}
	if k.registration, err = dial(socket); err != nil {
		return nil, err
	}
	client := registerapi.NewRegistrationClient(k.registration)
	if k.Info, err = client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true)); err != nil {
		k.Close()
		return nil, fmt.Errorf("read the registration info of the plugin at %s: %w", socket, err)
	}
	if k.plugin, err = dial(k.Info.Endpoint); err != nil {
		k.Close()
		return nil, err
	}
	if _, err := client.NotifyRegistrationStatus(ctx,
		&registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		k.Close()
		return nil, fmt.Errorf("register the plugin at %s: %w", socket, err)
	}
	return k, nil
}

func await(ctx context.Context, dir string, except []string) (string, error) {
	for {
		found, err := filepath.Glob(filepath.Join(dir, "*.sock"))
		if err != nil {
			return "", err
		}
		for _, socket := range found {
			known := false
			for _, e := range except {
				known = known || strings.Contains(socket, e)
			}
			if !known {
				return socket, nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("no registration socket appeared in %s: %w", dir, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func dial(socket string) (*grpc.ClientConn, error) {
	if _, err := os.Stat(socket); err != nil {
		return nil, err
	}
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func (k *Kubelet) Close() {
	for _, c := range []*grpc.ClientConn{k.registration, k.plugin} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// Prepare prepares claims and returns the result of each by UID.
func (k *Kubelet) Prepare(
	ctx context.Context, claims ...*drapb.Claim,
) (map[string]*drapb.NodePrepareResourceResponse, error) {
	resp, err := drapb.NewDRAPluginClient(k.plugin).NodePrepareResources(ctx,
		&drapb.NodePrepareResourcesRequest{Claims: claims})
	return resp.GetClaims(), err
}

func (k *Kubelet) Unprepare(
	ctx context.Context, claims ...*drapb.Claim,
) (map[string]*drapb.NodeUnprepareResourceResponse, error) {
	resp, err := drapb.NewDRAPluginClient(k.plugin).NodeUnprepareResources(ctx,
		&drapb.NodeUnprepareResourcesRequest{Claims: claims})
	return resp.GetClaims(), err
}

func (k *Kubelet) Health(ctx context.Context) (healthapi.DRAResourceHealth_NodeWatchResourcesClient, error) {
	return healthapi.NewDRAResourceHealthClient(k.plugin).NodeWatchResources(ctx,
		&healthapi.NodeWatchResourcesRequest{})
}
