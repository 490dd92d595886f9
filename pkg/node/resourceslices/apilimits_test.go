// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/node/resourceslices"
)

// room is the number of attributes that a later version can add to any device.
const room = 2

// TestBuild_EachBoardSettingAndDemand_WithinAPILimits has two more attributes on each device than this version publishes.
func TestBuild_EachBoardSettingAndDemand_WithinAPILimits(t *testing.T) {
	resourceslices.Crowd(t, room)
	reported, cases, devices := sets.New[string](), 0, 0
	for c, err := range slicetest.Cases() {
		if err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		cases++
		for _, s := range c.Slices() {
			devices += len(s.Spec.Devices)
			for _, refusal := range slicetest.Refusals(s.Spec) {
				if !reported.Has(refusal) && reported.Len() < 20 {
					t.Errorf("%s: %s", c.Name, refusal)
				}
				reported.Insert(refusal)
			}
		}
	}
	t.Logf("%d nodes with %d devices", cases, devices)
	if cases < 3000 || devices < 10*cases {
		t.Errorf("%d nodes with %d devices prove little", cases, devices)
	}
}
