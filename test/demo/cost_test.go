// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/show/view"
)

func TestCosts_ClaimsOfPods_HavePrices(t *testing.T) {
	samples, err := view.ReadSamples(strings.NewReader(`
gpu_dra_gpu_hourly_cost{model="H100"} 2
gpu_dra_claim_device_info{claim_namespace="a",claim_uid="1",pod="whole",device="gpu-0"} 1
gpu_dra_claim_device_info{claim_namespace="a",claim_uid="2",pod="idle",device="gpu-1"} 1
gpu_dra_claim_device_info{claim_namespace="a",claim_uid="3",pod="",device="gpu-2"} 1
gpu_dra_claim_device_info{claim_namespace="b",claim_uid="4",pod="other",device="gpu-3"} 1
# TYPE gpu_dra_claim_allocated_gpu_seconds_total counter
gpu_dra_claim_allocated_gpu_seconds_total{claim_uid="1",model="H100"} 1800
gpu_dra_claim_allocated_gpu_seconds_total{claim_uid="2",model="T4"} 36
gpu_dra_claim_allocated_gpu_seconds_total{claim_uid="4",model="H100"} 9
# TYPE gpu_dra_claim_active_gpu_seconds_total counter
gpu_dra_claim_active_gpu_seconds_total{claim_uid="1",model="H100"} 900
gpu_dra_claim_active_gpu_seconds_total{claim_uid="4",model="H100"} 9
`))
	if err != nil {
		t.Fatal(err)
	}
	want := `
POD    DEVICE  ALLOCATED GPU SECONDS  ACTIVE GPU SECONDS  COST
idle   gpu-1   36.0                   0.0                 0.0000
whole  gpu-0   1800.0                 900.0               1.0000
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), formatCosts(costs(samples, "a"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
