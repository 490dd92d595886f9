// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/sim/profiles"
)

// TestProbeDevices_EveryProfile_HasTheAttributesOfItsKind holds the catalogue against what simulated machines of all makes publish.
func TestProbeDevices_EveryProfile_HasTheAttributesOfItsKind(t *testing.T) {
	for _, p := range newView(t, patient, profiles.Names()...).Pools() {
		for d, kind := range p.Devices() {
			for _, e := range resourceslices.Catalogue() {
				_, attribute := d.Attributes[resourceapi.QualifiedName(e.Name)]
				_, capacity := d.Capacity[resourceapi.QualifiedName(e.Name)]
				if slices.Contains(e.Always, kind.Type) && !attribute && !capacity {
					t.Errorf("%s of %s has no %s", d.Name, p.Node, e.Name)
				}
				if slices.Contains(e.Always, kind.Type) && !slices.Contains(e.Devices, kind.Type) {
					t.Errorf("%s is always on devices of type %s, which never have it", e.Name, kind.Type)
				}
			}
		}
	}
}
