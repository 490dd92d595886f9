// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"slices"
	"testing"

	"gpu-dra-driver/pkg/cluster/read"
	"gpu-dra-driver/pkg/gpu/health"
)

// TestFindings_EachStateWithoutATaint_IsShown has a plugin that reports one kind of advice, or a fault of a GPU that it does not publish.
func TestFindings_EachStateWithoutATaint_IsShown(t *testing.T) {
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
	for _, s := range health.States {
		var out findings
		d := Diagnosis{Plugins: map[string]Samples{"n1": {
			"gpu_dra_device_health": {{Labels: map[string]string{"uuid": "GPU-1", "state": s.Name}, Value: 1}},
			"gpu_dra_gpu_info":      {{Labels: map[string]string{"uuid": "GPU-1", "device": "gpu-0000-1b-00-0"}, Value: 1}},
		}}}
		expect := func(what, absent string, n Node) {
			t.Helper()
			out = nil
			d.advice(&out, n, "n1")
			want := []Finding{{Warning, "n1/gpu-0000-1b-00-0", "unhealthy: " + s.Name + ": " + s.Cause + "." + absent + " To recover: " + s.RemedyFor("0000:1b:00.0")}}
			if !slices.Equal(want, out) {
				t.Errorf("%s of a GPU %s: %v, want %v", s.Name, what, out, want)
			}
		}
		expect("without devices", " No slice has GPU GPU-1, so new claims cannot get it.", Node{})
		expect("of a node with missing slices", "", Node{Incomplete: true})
		d.States = read.States{read.ResourceSlices: errors.New("forbidden")}
		expect("whose slices are unread", "", Node{})
		out = nil
		d.advice(&out, Node{GPUs: []GPU{{Name: "gpu-0000-1b-00-0", UUID: "GPU-1"}}}, "n1")
		if len(out) > 0 {
			t.Errorf("%s of a GPU with devices, whose taints say it: %v", s.Name, out)
		}
	}
	if len(health.Advices) < 5 {
		t.Errorf("only %d kinds of advice", len(health.Advices))
	}
}
