// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package resourceslices

import (
	"fmt"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
)

// Crowd adds attributes to all devices until the test ends.
func Crowd(t *testing.T, n int) {
	was := attributes
	t.Cleanup(func() { attributes = was })
	attributes = attributes[:len(attributes):len(attributes)]
	for i := range n {
		attributes = append(attributes, attribute{
			Entry{Name: fmt.Sprint("added", i), Type: "bool", Devices: allKinds},
			func(attributeSource) (*resourceapi.DeviceAttribute, string) {
				return &resourceapi.DeviceAttribute{BoolValue: new(true)}, ""
			},
		})
	}
}
