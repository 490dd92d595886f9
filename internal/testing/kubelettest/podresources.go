// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubelettest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// ServePodResources serves the pod-resources API of a kubelet without pods at the socket kubelet.sock of a directory,
// until stop is called. offered are the devices of its device plugins.
func ServePodResources(dir string, offered ...*podresources.ContainerDevices) (stop func(), err error) {
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		return nil, fmt.Errorf("serve the pod-resources API: %w", err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, podResources{offered: offered})
	go func() { _ = server.Serve(listener) }()
	return server.Stop, nil
}

type podResources struct {
	podresources.UnimplementedPodResourcesListerServer
	offered []*podresources.ContainerDevices
}

func (podResources) List(
	context.Context, *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{}, nil
}

func (p podResources) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: p.offered}, nil
}
