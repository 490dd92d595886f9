// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/internal/driverroot"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

func TestDriverDevice_Kinds_GiveWhatTheContainerNeeds(t *testing.T) {
	planned := plan.Device{Name: "x", PCIAddress: "0000:1b:00.0", UUID: "GPU-1", Minor: 3}
	partition := planned
	partition.Kind, partition.Partition = gpu.KindMIG, plan.Partition{UUID: "MIG-1", GPUInstance: 9, ComputeInstance: 1}
	admin := partition
	admin.Admin = true
	group := planned
	group.Kind = gpu.KindGroup
	whole := driverroot.Device{Name: "x", PCIAddress: "0000:1b:00.0", UUID: "GPU-1", Minor: 3}
	cut, switched := whole, whole
	cut.Partition = &driverroot.Partition{UUID: "MIG-1", GPUInstance: 9, ComputeInstance: 1}
	switched.Switches = true
	for name, c := range map[string]struct {
		planned plan.Device
		want    driverroot.Device
	}{
		"GPU": {planned, whole}, "partition": {partition, cut}, "group": {group, switched},
		"partition with admin access": {admin, whole},
	} {
		if diff := cmp.Diff(c.want, driverDevice(c.planned)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
