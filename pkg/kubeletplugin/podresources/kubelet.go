// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet's pod-resources API two questions: which claims do its pods still refer to
// (Usage, which asks the process table too), and which GPUs do device plugins of the node serve (DevicePlugins).
package podresources

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/metrics"
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

// pollInterval is how often the kubelet is asked for device plugins. The scheduler knows of devices that a device plugin
// takes between two polls, because they are the node's by then; those that it offers are withheld after the next poll.
const pollInterval = 10 * time.Second

// DevicePlugins knows which GPUs device plugins of the node serve. Its methods may be called at once.
type DevicePlugins struct {
	list     func(context.Context) (Allocations, error)
	snapshot func() gpu.Snapshot
	changed  func()
	metrics  *metrics.Metrics

	mu            sync.Mutex
	asked, failed bool
	served        Allocations
}

// NewDevicePlugins reads allocations from list, which is Kubelet.DevicePlugins. changed is called after the first poll,
// and after each one with other allocations; it must not block.
func NewDevicePlugins(
	list func(context.Context) (Allocations, error), snapshot func() gpu.Snapshot, changed func(), m *metrics.Metrics,
) *DevicePlugins {
	return &DevicePlugins{list: list, snapshot: snapshot, changed: changed, metrics: m}
}

// Run asks the kubelet until the context ends.
func (d *DevicePlugins) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { reporting.Protect(d.metrics, func() { d.poll(ctx) }) }, pollInterval)
}

func (d *DevicePlugins) poll(ctx context.Context) {
	served, err := d.list(ctx)
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	changed := !d.asked
	if err == nil {
		changed = changed || !maps.EqualFunc(served, d.served, slices.Equal[[]string])
		d.served = served
		d.metrics.SetDevicePluginGPUs(len(d.served.gpus(d.snapshot())))
	} else if !d.failed {
		// A kubelet that is starting again does not answer for a moment.
		klog.FromContext(ctx).V(2).Info("Cannot ask the kubelet for device plugins; going by its last answer", "err", err)
	}
	d.asked, d.failed = true, err != nil
	d.mu.Unlock()
	if changed {
		d.changed()
	}
}

// GPUs gives the resource name of each served GPU, by PCI address. It is false before the first poll.
func (d *DevicePlugins) GPUs() (map[string]string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.served.gpus(d.snapshot()), d.asked
}

// Resource is the name by which a device plugin serves the GPU at a PCI address, empty where none does.
func (d *DevicePlugins) Resource(address string) string {
	gpus, _ := d.GPUs()
	return gpus[address]
}

// gpus are the served GPUs by PCI address, each with the name of its resource. An ID of NVIDIA's device plugin is the UUID
// of a GPU or of a MIG device, or its index, and a replica's has a suffix. An ID of a resource of NVIDIA's GPUs that means
// none of them may mean any.
func (a Allocations) gpus(snapshot gpu.Snapshot) map[string]string {
	out := map[string]string{}
	for _, resource := range slices.Sorted(maps.Keys(a)) {
		nvidia := resource == "nvidia.com/gpu" || strings.HasPrefix(resource, "nvidia.com/gpu.") || strings.HasPrefix(resource, "nvidia.com/mig-")
		for _, id := range a[resource] {
			address, known := owner(snapshot, id, nvidia)
			switch {
			case known:
				out[address] = resource
			case nvidia:
				for _, g := range snapshot.GPUs {
					out[g.PCIAddress] = resource
				}
			}
		}
	}
	return out
}

// owner is the GPU that a device plugin's ID means.
func owner(snapshot gpu.Snapshot, id string, byIndex bool) (address string, known bool) {
	id, _, _ = strings.Cut(id, "::")
	index, err := strconv.Atoi(id)
	for _, g := range snapshot.GPUs {
		if g.UUID == id || byIndex && err == nil && g.Index == index {
			return g.PCIAddress, true
		}
		for _, p := range g.MIG.Partitions {
			if slices.ContainsFunc(p.Devices, func(d gpu.PartitionDevice) bool { return d.UUID == id }) {
				return g.PCIAddress, true
			}
		}
	}
	return "", false
}
