// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/node/metrics"
)

// kubeletState is a kubelet that names one claim.
type kubeletState struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (kubeletState) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "train",
		Containers: []*podresources.ContainerResources{{Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-7"}}}, DynamicResources: []*podresources.DynamicResource{{
			ClaimNamespace: "ns", ClaimName: "used",
			ClaimResources: []*podresources.ClaimResource{{CdiDevices: []*podresources.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=u-7-gpu"}}}},
		}, {
			ClaimNamespace: "ns", ClaimName: "unprepared",
			ClaimResources: []*podresources.ClaimResource{{CdiDevices: []*podresources.CDIDevice{{Name: "example.com/nic=eth0"}}}},
		}}}},
	}}}, nil
}

func (kubeletState) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: []*podresources.ContainerDevices{
		{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-1"}}, {ResourceName: "example.com/nic", DeviceIds: []string{"eth0"}},
	}}, nil
}

func TestKubelet_AwayAndThere_AnswersOnlyWhenThere(t *testing.T) {
	dir, err := os.MkdirTemp("", "kw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "k.sock")
	kubelet := NewKubelet(socket)
	u := NewUsage(kubelet, UsageOptions{})
	if _, err := u.ReferencedByKubelet(t.Context()); err == nil {
		t.Error("a kubelet that is away gave an answer")
	}
	if _, err := kubelet.DevicePlugins(t.Context(), true); err == nil {
		t.Error("a kubelet that is away knows of device plugins")
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, kubeletState{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	served, err := kubelet.DevicePlugins(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Allocations{"nvidia.com/gpu": {"GPU-1", "GPU-7"}, "example.com/nic": {"eth0"}}, served); diff != "" {
		t.Errorf("device plugins (-want +got):\n%s", diff)
	}
	referenced, err := u.ReferencedByKubelet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	users, err := u.Users(t.Context())
	if diff := cmp.Diff(map[string][]metrics.User{"u-7-gpu": {{Pod: "train", Container: "main"}}}, users); diff != "" || err != nil {
		t.Errorf("users: %v (-want +got):\n%s", err, diff)
	}
	for claim, want := range map[plan.Claim]bool{
		{Namespace: "ns", Name: "used", UID: "u-7"}:       true,
		{Namespace: "ns", Name: "used", UID: "u-1"}:       false, // Deleted; its name is used again.
		{Namespace: "ns", Name: "unprepared", UID: "u-1"}: true,
		{Namespace: "ns", Name: "other", UID: "u-7"}:      true,
		{Namespace: "ns", Name: "other", UID: "u-8"}:      false,
	} {
		if got := referenced(claim); got != want {
			t.Errorf("%+v: %v", claim, got)
		}
	}
}
