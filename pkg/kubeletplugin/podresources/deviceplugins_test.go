// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/gpu"
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
