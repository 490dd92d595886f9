// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/pool"
)

// TestAllocate_SelectorFails_IsFatalBesideAnyRequest has a second request that is for too many devices: the scheduler
// reaches the failing selector first, and gives up for all nodes.
func TestAllocate_SelectorFails_IsFatalBesideAnyRequest(t *testing.T) {
	published, err := slicetest.Node("l40s-4", "n1", 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []*pool.Slice
	for _, s := range published {
		all = append(all, pool.Unshared(s))
	}
	asker := ask.Asker{Evaluator: ask.NewEvaluator(), Classes: classes("gpu.nvidia.com")}
	request := func(name string, count int64, selectors ...resourceapi.DeviceSelector) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
			Selectors: selectors,
		}}
	}
	failing := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.attributes["gpu.nvidia.com"].absent == 1`,
	}}
	for name, requests := range map[string][]resourceapi.DeviceRequest{
		"alone":                {request("a", 1, failing)},
		"before one too large": {request("a", 1, failing), request("b", 9)},
	} {
		claim := &resourceapi.ResourceClaim{}
		claim.Spec.Devices.Requests = requests
		outcome, text := asker.Allocate(t.Context(), ask.Empty(pool.Of(all)), nil, []*resourceapi.ResourceClaim{claim})
		if outcome != ask.Fatal || text == "" {
			t.Errorf("%s: outcome %d, %q; want the allocator's error", name, outcome, text)
		}
	}
}
