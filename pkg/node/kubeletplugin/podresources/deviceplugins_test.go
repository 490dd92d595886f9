// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"maps"
	"testing"

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
	delete(offered, "nvidia.com/gpu")
	polls(2, 6, 3, 1)
	kept = nil
	polls(1, 7, 4, 0)
}
