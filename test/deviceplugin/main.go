// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command deviceplugin is a device plugin that serves devices with the given IDs, for tests of a node where it runs
// at the same time as the driver. Containers only get an environment variable. It ends when its standard input is
// closed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "deviceplugin:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("deviceplugin", flag.ContinueOnError)
	dir := fs.String("dir", deviceplugin.DevicePluginPath, "the kubelet's `directory` of device plugins")
	resource := fs.String("resource", "nvidia.com/gpu", "`name` of the resource")
	if err := fs.Parse(args); err != nil {
		return err
	}
	const name = "test.sock"
	listener, err := net.Listen("unix", filepath.Join(*dir, name))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	deviceplugin.RegisterDevicePluginServer(server, &plugin{end: ctx, ids: fs.Args()})
	go func() { _ = server.Serve(listener) }() // Stop ends it, and removes the socket.
	defer server.Stop()
	conn, err := grpc.NewClient("unix://"+filepath.Join(*dir, filepath.Base(deviceplugin.KubeletSocket)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = deviceplugin.NewRegistrationClient(conn).Register(ctx, &deviceplugin.RegisterRequest{Version: deviceplugin.Version, Endpoint: name, ResourceName: *resource})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

type plugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	end context.Context
	ids []string
}

func (*plugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	var all deviceplugin.ListAndWatchResponse
	for _, id := range p.ids {
		all.Devices = append(all.Devices, &deviceplugin.Device{ID: id, Health: deviceplugin.Healthy})
	}
	if err := stream.Send(&all); err != nil {
		return err
	}
	select {
	case <-p.end.Done():
	case <-stream.Context().Done():
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	var out deviceplugin.AllocateResponse
	for _, c := range r.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_TEST_DEVICES": fmt.Sprint(c.GetDevicesIds())},
		})
	}
	return &out, nil
}
