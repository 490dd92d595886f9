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

// ServePodResources serves the pod-resources API of a kubelet without pods and device plugins at the socket kubelet.sock
// of a directory, until stop is called.
func ServePodResources(dir string) (stop func(), err error) {
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		return nil, fmt.Errorf("serve the pod-resources API: %w", err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, podResources{})
	go func() { _ = server.Serve(listener) }()
	return server.Stop, nil
}

type podResources struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (podResources) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{}, nil
}

func (podResources) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{}, nil
}
