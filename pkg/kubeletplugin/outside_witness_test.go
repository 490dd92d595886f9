// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/kubeletplugin"
	"gpu-dra-driver/pkg/plan"
)

// kubeletState is a kubelet that names one claim.
type kubeletState struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (kubeletState) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Containers: []*podresources.ContainerResources{{Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-7"}}}, DynamicResources: []*podresources.DynamicResource{{
			ClaimNamespace: "ns", ClaimName: "used",
			ClaimResources: []*podresources.ClaimResource{{CdiDevices: []*podresources.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=u-7-gpu"}}}},
		}}}},
	}}}, nil
}

func (kubeletState) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: []*podresources.ContainerDevices{
		{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-1"}}, {ResourceName: "example.com/nic", DeviceIds: []string{"eth0"}},
	}}, nil
}

func TestWitnessAsksTheKubelet(t *testing.T) {
	dir, err := os.MkdirTemp("", "kw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "k.sock")
	w := kubeletplugin.Witness{Socket: socket}
	if _, err := w.ReferencedByKubelet(t.Context(), plan.Claim{Namespace: "ns", Name: "used", UID: "u-1"}); err == nil {
		t.Error("a kubelet that is away gave an answer")
	}
	if _, err := w.Served(t.Context()); err == nil {
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
	served, err := w.Served(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kubeletplugin.Served{"nvidia.com/gpu": {"GPU-1", "GPU-7"}, "example.com/nic": {"eth0"}}, served); diff != "" {
		t.Errorf("device plugins (-want +got):\n%s", diff)
	}
	for claim, want := range map[plan.Claim]bool{
		{Namespace: "ns", Name: "used", UID: "u-1"}:  true,
		{Namespace: "ns", Name: "other", UID: "u-7"}: true,
		{Namespace: "ns", Name: "other", UID: "u-8"}: false,
	} {
		if got, err := w.ReferencedByKubelet(t.Context(), claim); got != want || err != nil {
			t.Errorf("%+v: %v, %v", claim, got, err)
		}
	}
}

func TestWitnessFindsWhoHoldsADevice(t *testing.T) {
	proc := t.TempDir()
	open := func(pid, comm, device string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(proc, pid, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(comm+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(device, filepath.Join(proc, pid, "fd", "3")); err != nil {
			t.Fatal(err)
		}
	}
	w := kubeletplugin.Witness{
		ProcRoot: proc,
		Snapshot: func() gpu.Snapshot {
			return gpu.Snapshot{GPUs: []gpu.GPU{{PCIAddress: "0000:1b:00.0", Minor: 1}, {PCIAddress: "0000:43:00.0", Minor: 10}}}
		},
		Held: func() ([]plan.Plan, bool, error) { return nil, false, nil },
	}
	held := []plan.Device{{PCIAddress: "0000:1b:00.0", Minor: 1}}
	open("7", "nv-hostengine", "/dev/nvidia1")
	open("8", "other", "/dev/nvidia10")
	if who, err := w.OpenedBy(t.Context(), held); who != "" || err != nil {
		t.Errorf("held by %q, %v", who, err)
	}
	open("9", "train", "/dev/nvidia1")
	if who, err := w.OpenedBy(t.Context(), held); !strings.Contains(who, "process 9 (train") || err != nil {
		t.Errorf("held by %q, %v", who, err)
	}
	held[0].Admin = true
	if who, err := w.OpenedBy(t.Context(), held); who != "" || err != nil {
		t.Errorf("watching is held up by %q, %v", who, err)
	}
}

func TestHookIsInstalledWholeAndOnce(t *testing.T) {
	dir := t.TempDir()
	h := host.New(host.Options{})
	t.Cleanup(h.Close)
	source := filepath.Join(dir, "image-hook")
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	install := func() error { return kubeletplugin.InstallHook(t.Context(), h, source, data) }
	if err := install(); err == nil {
		t.Error("an image without a hook is fine")
	}
	for _, text := range []string{"one", "one", "two"} {
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := install(); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(data, kubeletplugin.HookName))
		if err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%v, %v", info, err)
		}
		if got, _ := os.ReadFile(filepath.Join(data, kubeletplugin.HookName)); string(got) != text {
			t.Errorf("installed %q, want %q", got, text)
		}
	}
	if err := os.Remove(source); err != nil {
		t.Fatal(err)
	}
	if err := install(); err != nil {
		t.Error("one that is installed does not stay:", err)
	}
}
