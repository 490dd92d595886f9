// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/metrics"
)

// rivalEvery is how often the kubelet is asked for device plugins. What one of them takes between two looks the scheduler
// knows of, for its devices are the node's by then; what it offers is withheld at the next.
const rivalEvery = 10 * time.Second

// Served are the devices that device plugins of the node serve, and pods have of them: IDs by resource name.
type Served map[string][]string

// Served asks the kubelet, which knows its device plugins best: what is allocatable, and what a pod still has though its
// plugin is gone.
func (w Witness) Served(ctx context.Context) (Served, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	kubelet, hangUp, err := w.kubelet()
	if err != nil {
		return nil, err
	}
	defer hangUp()
	can, err := kubelet.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for device plugins at %s: %w", w.Socket, err)
	}
	have, err := kubelet.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list the pods at %s: %w", w.Socket, err)
	}
	out := Served{}
	add := func(devices []*podresources.ContainerDevices) {
		for _, d := range devices {
			out[d.GetResourceName()] = append(out[d.GetResourceName()], d.GetDeviceIds()...)
		}
	}
	add(can.GetDevices())
	for _, pod := range have.GetPodResources() {
		for _, container := range pod.GetContainers() {
			add(container.GetDevices())
		}
	}
	return out, nil
}

// gpus are the GPUs that are served, by PCI address, each with the name of its resource. An ID of NVIDIA's device plugin is
// the UUID of a GPU or of a MIG device, or its index, and a replica's has a suffix. Where an ID of a resource that is
// NVIDIA's GPUs tells nothing, it may be any.
func (s Served) gpus(snapshot gpu.Snapshot) map[string]string {
	out := map[string]string{}
	for _, resource := range slices.Sorted(maps.Keys(s)) {
		nvidia := resource == "nvidia.com/gpu" || strings.HasPrefix(resource, "nvidia.com/gpu.") || strings.HasPrefix(resource, "nvidia.com/mig-")
		for _, id := range s[resource] {
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

// watchRivals asks the kubelet for device plugins until the context ends, and has what they serve withheld. The first answer,
// or the failure to get one, comes before anything is published.
func (n *node) watchRivals(ctx context.Context, ask func(context.Context) (Served, error), m *metrics.Metrics) {
	failed := false
	for {
		served, err := ask(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			n.rivals(served, m)
			failed = false
		case !failed:
			// A kubelet that is starting again does not answer for a moment: what was served is taken to be still.
			klog.FromContext(ctx).V(2).Info("Cannot ask the kubelet for device plugins; going by its last answer", "err", err)
			failed = true
		}
		n.mu.Lock()
		first := n.asking
		n.asking = false
		n.mu.Unlock()
		if first {
			n.changed()
		}
		if !sleep(ctx, rivalEvery) {
			return
		}
	}
}

func (n *node) rivals(served Served, m *metrics.Metrics) {
	n.mu.Lock()
	same := maps.EqualFunc(served, n.served, slices.Equal[[]string])
	n.served = served
	m.SetDevicePluginGPUs(len(served.gpus(n.snapshot)))
	n.mu.Unlock()
	if !same {
		n.changed()
	}
}

// rival says by what name a device plugin serves the GPU at a PCI address, and is empty where none does.
func (n *node) rival(address string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.served.gpus(n.snapshot)[address]
}
