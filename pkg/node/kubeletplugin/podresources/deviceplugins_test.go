// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/notify"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/pkg/show/metrics"
)

var three = gpu.Snapshot{Driver: gpu.Driver{Version: "580.126.09"}, GPUs: []gpu.GPU{
	{PCIAddress: "0000:10:00.0", UUID: "GPU-a", Index: 0},
	{PCIAddress: "0000:11:00.0", UUID: "GPU-b", Index: 1, MIG: gpu.MIG{Partitions: []gpu.Partition{{Devices: []gpu.PartitionDevice{{UUID: "MIG-1"}}}}}},
	{PCIAddress: "0000:12:00.0", UUID: "GPU-c", Index: 2},
}}

func TestAllocations_IDs_NameGPUs(t *testing.T) {
	all := func(resource string) map[string]string {
		return map[string]string{"0000:10:00.0": resource, "0000:11:00.0": resource, "0000:12:00.0": resource}
	}
	for name, c := range map[string]struct {
		served Allocations
		want   map[string]string
	}{
		"nobody":                         {nil, map[string]string{}},
		"by UUID":                        {Allocations{"nvidia.com/gpu": {"GPU-a", "GPU-c"}}, map[string]string{"0000:10:00.0": "nvidia.com/gpu", "0000:12:00.0": "nvidia.com/gpu"}},
		"replicas":                       {Allocations{"nvidia.com/gpu.shared": {"GPU-b::0", "GPU-b::1"}}, map[string]string{"0000:11:00.0": "nvidia.com/gpu.shared"}},
		"a partition":                    {Allocations{"nvidia.com/mig-1g.10gb": {"MIG-1"}}, map[string]string{"0000:11:00.0": "nvidia.com/mig-1g.10gb"}},
		"by index":                       {Allocations{"nvidia.com/gpu": {"2", "2::1"}}, map[string]string{"0000:12:00.0": "nvidia.com/gpu"}},
		"another name of the resource":   {Allocations{"example.com/gpu": {"GPU-a"}}, map[string]string{"0000:10:00.0": "example.com/gpu"}},
		"a network card":                 {Allocations{"nvidia.com/rdma": {"0", "eth0"}}, map[string]string{}},
		"an unknown ID may be any":       {Allocations{"nvidia.com/gpu": {"GPU-of-old"}}, all("nvidia.com/gpu")},
		"an index that is none":          {Allocations{"nvidia.com/gpu": {"9"}}, all("nvidia.com/gpu")},
		"a partition that is gone":       {Allocations{"nvidia.com/mig-1g.10gb": {"MIG-9"}}, all("nvidia.com/mig-1g.10gb")},
		"an ID of nothing":               {Allocations{"nvidia.com/gpu": {""}}, all("nvidia.com/gpu")},
		"a resource that has no devices": {Allocations{"nvidia.com/gpu": nil}, map[string]string{}},
	} {
		if diff := cmp.Diff(c.want, c.served.gpus(three)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

type lister func(pods bool) (Allocations, error)

func (l lister) DevicePlugins(_ context.Context, pods bool) (Allocations, error) { return l(pods) }

// TestDevicePlugins_Polls_ListPodsWhileGPUsAreServed has a device plugin come and end while a pod keeps a device.
func TestDevicePlugins_Polls_ListPodsWhileGPUsAreServed(t *testing.T) {
	synctest.Test(t, testPolls)
}

func testPolls(t *testing.T) {
	var offered, kept Allocations
	listed, changes := 0, 0
	list := lister(func(pods bool) (Allocations, error) {
		out := maps.Clone(offered)
		if pods {
			listed++
			for name, ids := range kept {
				out[name] = append(out[name], ids...)
			}
		}
		return out, nil
	})
	scans, changed := inventory.NewLatest(), notify.NewTrigger()
	scans.Set(three)
	d := NewDevicePlugins(list, scans, changed, metrics.New(metrics.Options{}))
	polls := func(n, wantListed, wantChanges, wantGPUs int) {
		t.Helper()
		for range n {
			d.poll(t.Context())
			select {
			case <-changed:
				changes++
			default:
			}
		}
		if gpus, _ := d.GPUs(); listed != wantListed || changes != wantChanges || len(gpus) != wantGPUs {
			t.Errorf("pods listed %d times, %d changes, %d GPUs; want %d, %d, %d", listed, changes, len(gpus), wantListed, wantChanges, wantGPUs)
		}
	}
	offered = Allocations{"example.com/nic": {"eth0"}}
	polls(podsEvery, 1, 1, 0)
	polls(podsEvery, 2, 1, 0)
	polls(1, 3, 1, 0)
	offered["nvidia.com/gpu"] = []string{"GPU-a", "GPU-b"}
	kept = Allocations{"nvidia.com/gpu": {"GPU-a"}}
	polls(2, 4, 2, 2)
	// The kubelet restarts: the device plugin registers again, but only after some answers without it.
	delete(offered, "nvidia.com/gpu")
	polls(2, 6, 2, 2)
	time.Sleep(servedGrace - 1)
	polls(2, 8, 2, 2)
	offered["nvidia.com/gpu"] = []string{"GPU-a", "GPU-b"}
	polls(1, 9, 2, 2)
	// The device plugin ends.
	delete(offered, "nvidia.com/gpu")
	polls(1, 10, 2, 2)
	time.Sleep(servedGrace)
	polls(2, 12, 3, 1)
	kept = nil
	polls(1, 13, 3, 1)
	time.Sleep(servedGrace)
	polls(1, 14, 4, 0)
}

// TestDevicePlugins_ServedPartitionGone_KeepsItsGPUOnly has a device plugin end whose partition is destroyed then. Its ID
// is unknown, and must not cover all GPUs.
func TestDevicePlugins_ServedPartitionGone_KeepsItsGPUOnly(t *testing.T) {
	var offered Allocations
	scans := inventory.NewLatest()
	scans.Set(three)
	list := lister(func(bool) (Allocations, error) { return offered, nil })
	d := NewDevicePlugins(list, scans, notify.NewTrigger(), metrics.New(metrics.Options{}))
	offered = Allocations{"nvidia.com/mig-1g.10gb": {"MIG-1"}}
	d.poll(t.Context())
	offered = nil
	d.poll(t.Context())
	without := three
	without.GPUs = slices.Clone(three.GPUs)
	without.GPUs[1].MIG = gpu.MIG{}
	scans.Set(without)
	if served, _ := d.GPUs(); !maps.Equal(served, map[string]string{"0000:11:00.0": "nvidia.com/mig-1g.10gb"}) {
		t.Errorf("served %v", served)
	}
}
