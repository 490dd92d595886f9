// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package waiting_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/internal/testing/selectortest"
	"gpu-dra-driver/pkg/cluster/selector"
	"gpu-dra-driver/pkg/cluster/waiting"
)

const driver = "gpu.nvidia.com"

func TestOursByResource_RandomClasses_AsTheSchedulersClass(t *testing.T) {
	for seed := range seedtest.Each(t, 300) {
		classes := selectortest.Classes(rand.New(rand.NewPCG(seed, 6)))
		for _, name := range selectortest.Resources(classes) {
			want := strings.HasPrefix(string(name), "nvidia.com/") || strings.HasSuffix(string(name), ".nvidia.com") // Named like ours.
			if class := selectortest.Scheduled(classes, name); class != nil {
				want = selector.Concern(class.Spec.Selectors, driver)
			}
			if got := waiting.NewClasses(driver, classes).OursByResource(name); got != want {
				t.Fatalf("seed %d: %s is ours: %t, want %t", seed, name, got, want)
			}
		}
	}
}
