// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet's pod-resources API two questions: which claims do its pods still refer to
// (Usage, which asks the process table too), and which GPUs do device plugins of the node serve (DevicePlugins).
package podresources

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxAnswer is the accepted size of the kubelet's answer, as its own clients have it.
const maxAnswer = 16 << 20

// Kubelet is the kubelet's pod-resources API at a socket.
type Kubelet string

// call gives do a client, for ten seconds at the most.
func (k Kubelet) call(ctx context.Context, do func(context.Context, podresources.PodResourcesListerClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+string(k), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err == nil {
		defer conn.Close()
		err = do(ctx, podresources.NewPodResourcesListerClient(conn))
	}
	if err != nil {
		return fmt.Errorf("ask the kubelet at %s: %w", k, err)
	}
	return nil
}

// containers calls visit with each container of the node's pods.
func (k Kubelet) containers(ctx context.Context, visit func(*podresources.ContainerResources)) error {
	return k.call(ctx, func(ctx context.Context, client podresources.PodResourcesListerClient) error {
		list, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
		if err != nil {
			return fmt.Errorf("list the pods: %w", err)
		}
		for _, pod := range list.GetPodResources() {
			for _, container := range pod.GetContainers() {
				visit(container)
			}
		}
		return nil
	})
}

// Allocations are IDs of devices by resource name.
type Allocations map[string][]string

// DevicePlugins lists the devices that device plugins of the node offer, and those that a pod still has though its
// device plugin is gone.
func (k Kubelet) DevicePlugins(ctx context.Context) (Allocations, error) {
	out := Allocations{}
	add := func(devices []*podresources.ContainerDevices) {
		for _, d := range devices {
			out[d.GetResourceName()] = append(out[d.GetResourceName()], d.GetDeviceIds()...)
		}
	}
	err := k.call(ctx, func(ctx context.Context, client podresources.PodResourcesListerClient) error {
		offered, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
		if err != nil {
			return fmt.Errorf("list the devices of device plugins: %w", err)
		}
		add(offered.GetDevices())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, k.containers(ctx, func(c *podresources.ContainerResources) { add(c.GetDevices()) })
}
