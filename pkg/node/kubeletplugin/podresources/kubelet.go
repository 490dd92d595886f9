// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

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

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/node/kubeletplugin/reporting"
	"gpu-dra-driver/pkg/show/metrics"
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
func (k *Kubelet) call(ctx context.Context, do func(context.Context, podresources.PodResourcesListerClient) error) error {
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
	ctx context.Context, client podresources.PodResourcesListerClient, visit func(*podresources.PodResources, *podresources.ContainerResources),
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

// Allocations are device IDs by resource name.
type Allocations map[string][]string

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
		return containers(ctx, client, func(_ *podresources.PodResources, c *podresources.ContainerResources) { add(c.GetDevices()) })
	})
	return out, err
}

// pollInterval is the interval of the questions about device plugins. GPUs that a device plugin newly offers are
// withdrawn after the next poll. Until then a claim can get one, and Prepare refuses it.
const pollInterval = 20 * time.Second

// podsEvery is the number of polls after which the pods are listed, which costs more than all else in a poll. While a
// device plugin serves GPUs, each poll lists them.
const podsEvery = 3

// servedGrace is the time for which a GPU stays served after the last answer with it. After its own restart, and after a
// device plugin's, the kubelet lists no devices until the device plugin has registered again. It waits as long itself
// (endpointStopGracePeriod).
const servedGrace = 5 * time.Minute

// DevicePlugins knows the GPUs that the node's device plugins serve. It is safe for concurrent use.
type DevicePlugins struct {
	kubelet Lister
	scans   *inventory.Latest
	changed notify.Trigger
	metrics *metrics.Metrics

	mu            sync.Mutex
	asked, failed bool
	answers       int
	served        Allocations
	// seen are the GPUs of the answers within servedGrace, by PCI address.
	seen map[string]sighting
}

// sighting is the last answer with a GPU.
type sighting struct {
	resource string
	at       time.Time
}

// Lister lists the allocations of device plugins. *Kubelet implements it.
type Lister interface {
	DevicePlugins(ctx context.Context, pods bool) (Allocations, error)
}

// NewDevicePlugins returns a DevicePlugins before its first poll. It fires changed after that and after each poll in
// which the allocations cover other GPUs.
func NewDevicePlugins(kubelet Lister, scans *inventory.Latest, changed notify.Trigger, m *metrics.Metrics) *DevicePlugins {
	return &DevicePlugins{kubelet: kubelet, scans: scans, changed: changed, metrics: m, seen: map[string]sighting{}}
}

// Run polls the kubelet until the context ends.
func (d *DevicePlugins) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { reporting.Protect(d.metrics, func() { d.poll(ctx) }) }, pollInterval)
}

func (d *DevicePlugins) poll(ctx context.Context) {
	before, _ := d.GPUs()
	served, err := d.kubelet.DevicePlugins(ctx, len(before) > 0 || d.answers%podsEvery == 0)
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	changed := !d.asked
	if err == nil {
		d.answers++
		d.served = served
		for address, resource := range served.gpus(d.scans.Snapshot()) {
			d.seen[address] = sighting{resource, time.Now()}
		}
		maps.DeleteFunc(d.seen, func(_ string, s sighting) bool { return time.Since(s.at) >= servedGrace })
		now := d.gpus()
		changed = changed || !maps.Equal(now, before)
		d.metrics.SetDevicePluginGPUs(len(now))
	} else if !d.failed {
		// A starting kubelet does not answer for a moment.
		klog.FromContext(ctx).V(2).Info("Cannot ask the kubelet for device plugins; its last answer stays valid", "err", err)
	}
	d.asked, d.failed = true, err != nil
	d.mu.Unlock()
	if changed {
		d.changed.Fire()
	}
}

// GPUs implements plan.DevicePlugins.
func (d *DevicePlugins) GPUs() (map[string]string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gpus(), d.asked
}

// gpus returns the served GPUs. The caller holds d.mu.
func (d *DevicePlugins) gpus() map[string]string {
	out := d.served.gpus(d.scans.Snapshot())
	for address, s := range d.seen {
		if out[address] == "" {
			out[address] = s.resource
		}
	}
	return out
}

// gpus returns the resource name of each served GPU, by PCI address. NVIDIA's device plugin uses the UUID of a GPU or
// MIG device or the GPU's index as ID, with a suffix for replicas. An unknown ID of an NVIDIA resource may mean any
// GPU, so it covers all.
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

// owner returns the GPU of a device plugin's ID.
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
