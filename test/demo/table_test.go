// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/test/e2e/env"
)

func TestFormat_SeveralDemos_GroupsByDemo(t *testing.T) {
	results := []result{
		{
			demo: env.Demo{Name: "fraction-two", Title: "Two pods share one GPU"}, ran: 2,
			pods: [][]string{
				{"first", "gpu-0000-1b-00-0", "/dev/nvidia0", "MPS, 20224 MiB; 19 GiB allocated; 21 GiB refused: CUDA_ERROR_OUT_OF_MEMORY"},
				{"second", "gpu-0000-1b-00-0-mig-1g-10gb-0 … gpu-0000-1b-00-0-mig-1g-10gb-6 (7)", "/dev/nvidia0", "-"},
			},
		},
		{
			demo: env.Demo{Name: "quota", Title: "A quota of GPUs for a namespace"}, ran: 10, waited: 1,
			pods:    [][]string{{"a", "none", "none", "-"}, {"… and 9 more pods"}},
			waiting: [][]string{{"b", "waits: exceeded quota"}},
		},
	}
	want := `
POD       DEVICE                                           DEVICE NODES  ENVIRONMENT

fraction-two: Two pods share one GPU
  first   gpu-0000-1b-00-0                                 /dev/nvidia0  MPS, 20224 MiB; 19 GiB allocated; 21 GiB
                                                                         refused: CUDA_ERROR_OUT_OF_MEMORY
  second  gpu-0000-1b-00-0-mig-1g-10gb-0 …                 /dev/nvidia0  -
          gpu-0000-1b-00-0-mig-1g-10gb-6 (7)

quota: A quota of GPUs for a namespace
  a       none                                             none          -
  … and 9 more pods
  b       waits: exceeded quota

2 demos. 12 pods ran; 1 waited, as their demos say.
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), format(results)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStories_DemosWithSteps_ShowsCommands(t *testing.T) {
	got := stories([]result{
		{demo: env.Demo{Name: "one-gpu", Title: "One pod gets one GPU"}},
		{demo: env.Demo{Name: "pack", Title: "One move"}, story: "$ kubectl gpu pack --for nvlink-4\nRoom after 1 move:\n  1. move\n"},
	})
	want := "\npack: One move\n\n$ kubectl gpu pack --for nvlink-4\nRoom after 1 move:\n  1. move\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReason_SchedulerOrQuota_ShortensText(t *testing.T) {
	for why, want := range map[string]string{
		"0/1 nodes are available: 1 cannot allocate all claims. preemption: none": "0/1 nodes are available: 1 cannot allocate all claims",
		`claims "x" is forbidden: exceeded quota: gpus`:                           "exceeded quota: gpus",
	} {
		if got := reason(why); got != want {
			t.Errorf("%q: got %q, want %q", why, got, want)
		}
	}
}
