// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nobudgets

package view

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
)

// TestQuotas_ShareOfAGPUThatIsNotShared_CostsItsPart has a claim that waits until its node shares its GPUs.
func TestQuotas_ShareOfAGPUThatIsNotShared_CostsItsPart(t *testing.T) {
	settings, _, err := sharing.Parse([]byte("publish: [{profiles: Auto, shareable: Auto}]"))
	if err != nil {
		t.Fatal(err)
	}
	scanned, err := slicetest.Scan("hgx-h100", "n1", 1)
	if err != nil {
		t.Fatal(err)
	}
	o := Objects{Driver: slicetest.Driver}
	for _, s := range slicetest.Slices(scanned, "n1", settings) {
		o.Slices = append(o.Slices, pool.Unshared(s))
	}
	claim := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "c"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "gpu.nvidia.com",
		Selectors:       []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `!("maxShares" in device.attributes["gpu.nvidia.com"])`}}},
		Capacity:        &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("8Gi")}},
	}}}
	o.Claims = []resourceapi.ResourceClaim{claim}
	classes := []resourceapi.DeviceClass{quotaClass("gpu.nvidia.com", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`, "")}
	got := Quotas(t.Context(), o, classes, nil)
	if len(got) != 2 || got[0].Used != 0.101 || got[1].Used != 8<<30 {
		t.Errorf("%+v, want a tenth of an H100", got)
	}
}
