// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"fmt"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// ExampleBuild publishes two GPUs without MIG, one of which needs a reset.
func ExampleBuild() {
	snapshot := gpu.Snapshot{GPUs: []gpu.GPU{
		{PCIAddress: "0000:1b:00.0", UUID: "GPU-9be4", ProductName: "NVIDIA L4", MemoryBytes: 24 << 30},
		{PCIAddress: "0000:43:00.0", UUID: "GPU-77ac", ProductName: "NVIDIA L4", MemoryBytes: 24 << 30},
	}}
	pool, warnings := resourceslices.Build(snapshot, map[string]resourceslices.Condition{
		"0000:43:00.0": {State: health.Reset, Message: "reset it"},
	}, resourceslices.Options{Node: "node-1", Taints: true})
	fmt.Println("pool", pool.Name)
	for _, slice := range pool.Slices {
		for _, d := range slice.Devices {
			memory := d.Capacity["memory"].Value
			fmt.Println(d.Name, *d.Attributes["productName"].StringValue, memory.String(), len(d.Taints), "taints")
		}
	}
	for _, w := range warnings {
		fmt.Println(w.Device, "has a warning:", w.Message)
	}
	// Output:
	// pool node-1/gpu
	// gpu-0000-1b-00-0 NVIDIA L4 24Gi 0 taints
	// gpu-0000-43-00-0 NVIDIA L4 24Gi 1 taints
	// gpu-0000-43-00-0 has a warning: GPU at 0000:43:00.0 is unavailable to new claims: reset it
}
