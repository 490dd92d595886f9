// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package layout_test

import (
	"testing"

	"gpu-dra-driver/internal/testing/layouttest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/layout"
)

// BenchmarkBindingAndOrder measures one build of the slices for one GPU.
func BenchmarkBindingAndOrder(b *testing.B) {
	for name, m := range map[string]gpu.MIG{"H100": layouttest.H100(), "RTXPRO6000": layouttest.RTXPRO6000()} {
		b.Run("binding/"+name, func(b *testing.B) {
			for b.Loop() {
				layout.Binding(m.Profiles)
			}
		})
		b.Run("order/"+name, func(b *testing.B) {
			for b.Loop() {
				layout.Order(m.Profiles)
			}
		})
	}
}
