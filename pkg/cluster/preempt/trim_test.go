// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package preempt

import (
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"gpu-dra-driver/internal/testing/boundedtest"
)

func TestInformers_LargestObjects_LittleMemory(t *testing.T) {
	boundedtest.Check(t, New(fake.NewClientset(), nil, nil, nil, Options{}))
}
