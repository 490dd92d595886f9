// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask_test

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
)

// Example asks for two GPUs, and then for five, on an empty node with four.
func Example() {
	published, err := slicetest.Node("l40s-4", "n1", 0)
	if err != nil {
		panic(err)
	}
	var all []*pool.Slice
	for _, s := range published {
		all = append(all, pool.Unshared(s))
	}
	asker := ask.Asker{Evaluator: ask.NewEvaluator(), Classes: classes("gpu.nvidia.com")}
	for _, count := range []int64{2, 5} {
		claim := &resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
			}}},
		}}}
		outcome, _ := asker.Allocate(context.Background(), ask.Empty(pool.Of(all)), nil, []*resourceapi.ResourceClaim{claim})
		fmt.Println(count, "GPUs fit:", outcome == ask.Yes)
	}
	// Output:
	// 2 GPUs fit: true
	// 5 GPUs fit: false
}

// classes has a class of all GPUs.
func classes(name string) resourcelisters.DeviceClassLister {
	all := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	_ = all.Add(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`,
		}}}},
	})
	return resourcelisters.NewDeviceClassLister(all)
}
