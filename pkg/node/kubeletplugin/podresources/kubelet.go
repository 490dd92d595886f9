// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxAnswer is the maximum size of the kubelet's answer, as in its own clients.
const maxAnswer = 16 << 20

// Kubelet is the client of the kubelet's pod-resources API at a socket. It is safe for concurrent use.
type Kubelet struct {
	socket string

	mu sync.Mutex
	// conn is nil before the first call and after a failed one: gRPC would wait before it connects again.
	conn *grpc.ClientConn
}

// NewKubelet returns a Kubelet that is not connected yet.
func NewKubelet(socket string) *Kubelet { return &Kubelet{socket: socket} }

// call calls do with a client, for ten seconds at most.
func (k *Kubelet) call(
	ctx context.Context, do func(context.Context, podresources.PodResourcesListerClient) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := k.connection()
	if err == nil {
		if err = do(ctx, podresources.NewPodResourcesListerClient(conn)); err != nil {
			k.disconnect(conn)
		}
	}
	if err != nil {
		return fmt.Errorf("ask the kubelet at %s: %w", k.socket, err)
	}
	return nil
}

func (k *Kubelet) connection() (*grpc.ClientConn, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn != nil {
		return k.conn, nil
	}
	var err error
	k.conn, err = grpc.NewClient("unix://"+k.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	return k.conn, err
}

func (k *Kubelet) disconnect(conn *grpc.ClientConn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.conn == conn {
		k.conn = nil
	}
	_ = conn.Close()
}

func containers(
	ctx context.Context, client podresources.PodResourcesListerClient, visit func(*podresources.PodResources,
		*podresources.ContainerResources),
) error {
	list, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			visit(pod, container)
		}
	}
	return nil
}

// DevicePlugins lists the devices that the node's device plugins offer and, with pods, the devices that pods keep after
// their device plugin ended.
func (k *Kubelet) DevicePlugins(ctx context.Context, pods bool) (Allocations, error) {
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
		if !pods {
			return nil
		}
		return containers(ctx, client, func(_ *podresources.PodResources, c *podresources.ContainerResources) {
			add(c.GetDevices())
		})
	})
	return out, err
}
