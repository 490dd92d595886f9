// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"gpu-dra-driver/internal/testing/boundedtest"
	"gpu-dra-driver/internal/testing/slicetest"
)

// TestInformers_LargestObjects_LittleMemory covers each field of the controller's parts that is an informer.
func TestInformers_LargestObjects_LittleMemory(t *testing.T) {
	client := fake.NewClientset()
	c := New(slicetest.Driver, client, Options{LabelNodes: true})
	// ResourceSlices have the limits of their shapes, and a certificate has one object of each kind.
	boundedtest.Check(t, c, "*v1.ResourceSlice")
	boundedtest.Check(t, NewCertificate(client, "ns", "secret", "service", "configuration"), "*v1.Secret", "*v1.ValidatingWebhookConfiguration")
	for _, preemption := range []bool{false, true} {
		boundedtest.Check(t, New(slicetest.Driver, client, Options{Waiting: true, Preemption: preemption}), "*v1.ResourceSlice")
	}
}
