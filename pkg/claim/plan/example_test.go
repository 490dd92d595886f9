// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"encoding/json"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// ExampleMake plans a claim that has 10 GiB of the node's only GPU.
func ExampleMake() {
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "notebook", UID: "5d3e"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
				Request: "gpu", Driver: "gpu.nvidia.com", Pool: "node-1/gpu", Device: "gpu-0000-1b-00-0",
				ShareID: new(types.UID("share-1")), ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": resource.MustParse("10Gi"),
				},
			}}},
		}},
	}
	p, err := plan.Make(claim, plan.Node{
		Driver: "gpu.nvidia.com", Pool: "node-1/gpu",
		Policy: func(gpu.GPU, string) sharing.Policy { return sharing.Policy{} },
		Snapshot: gpu.Snapshot{GPUs: []gpu.GPU{
			{PCIAddress: "0000:1b:00.0", UUID: "GPU-9be4", MPSCapable: true, MemoryBytes: 80 << 30, ReservedBytes: 1 << 30},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	d := p.Devices[0]
	fmt.Println(p.Claim, d.Name, d.UUID)
	for _, one := range []any{d.Share, d.Sharing, p.Steps} {
		data, _ := json.Marshal(one)
		fmt.Println(string(data))
	}
	// Output:
	// team-a/notebook gpu-0000-1b-00-0 GPU-9be4
	// {"memoryBytes":10737418240,"deviceMemoryBytes":85899345920,"maxShares":48,"usableBytes":10603200512}
	// {"strategy":"MPS","memoryLimit":10603200512}
	// [{"executor":"mps","pciAddress":"0000:1b:00.0"}]
}
