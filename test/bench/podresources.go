// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// pods is the kubelet's pod-resources API: each prepared claim has a pod. Without it the plugin would ask the API server
// about every claim each minute, as about claims that the kubelet has forgotten.
type pods struct {
	podresources.UnimplementedPodResourcesListerServer

	mu     sync.Mutex
	claims map[string]*podresources.DynamicResource
}

func (b *bench) servePodResources() error {
	b.pods.claims = map[string]*podresources.DynamicResource{}
	listener, err := net.Listen("unix", filepath.Join(b.dir, "kubelet.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &b.pods)
	go func() { _ = server.Serve(listener) }()
	return nil
}

// set stores a claim's devices; nil removes the claim.
func (p *pods) set(c *drapb.Claim, devices []*drapb.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if devices == nil {
		delete(p.claims, c.Uid)
		return
	}
	resource := &podresources.ClaimResource{}
	for _, d := range devices {
		for _, id := range d.CdiDeviceIds {
			resource.CdiDevices = append(resource.CdiDevices, &podresources.CDIDevice{Name: id})
		}
	}
	p.claims[c.Uid] = &podresources.DynamicResource{
		ClaimName: c.Name, ClaimNamespace: c.Namespace, ClaimResources: []*podresources.ClaimResource{resource},
	}
}

func (p *pods) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := &podresources.ListPodResourcesResponse{}
	for _, claim := range p.claims {
		answer.PodResources = append(answer.PodResources, &podresources.PodResources{
			Namespace: claim.ClaimNamespace, Name: claim.ClaimName,
			Containers: []*podresources.ContainerResources{{DynamicResources: []*podresources.DynamicResource{claim}}},
		})
	}
	return answer, nil
}

func (p *pods) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{}, nil
}
