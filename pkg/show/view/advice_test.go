// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"testing"

	"gpu-dra-driver/pkg/gpu/health"
)

// TestFindings_EachAdvice_IsShown has a plugin that reports one kind of advice.
func TestFindings_EachAdvice_IsShown(t *testing.T) {
	for _, a := range health.Advices {
		var out findings
		d := Diagnosis{Plugins: map[string]Samples{"n1": {"gpu_dra_device_health": {
			{Labels: map[string]string{"uuid": "GPU-1", "state": a.Name}, Value: 1},
			{Labels: map[string]string{"uuid": "GPU-1", "state": "healthy"}, Value: 1},
		}}}}
		d.advice(&out, Node{GPUs: []GPU{{Name: "gpu-0000-1b-00-0", UUID: "GPU-1"}}}, "n1")
		want := []Finding{{Warning, "n1/gpu-0000-1b-00-0", a.Cause + ". To recover: " + a.Remedy}}
		if !slices.Equal(want, out) {
			t.Errorf("%s: %v, want %v", a.Name, out, want)
		}
	}
	if len(health.Advices) < 5 {
		t.Errorf("only %d kinds of advice", len(health.Advices))
	}
}
