//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

// findDemo returns a demo by its name.
func findDemo(t *testing.T, name string) env.Demo {
	t.Helper()
	demos, err := cluster.Demos()
	must(t, err)
	i := slices.IndexFunc(demos, func(d env.Demo) bool { return d.Name == name })
	if i < 0 {
		t.Fatalf("no demo %q", name)
	}
	return demos[i]
}

// runDemo applies a demo, returns its settled pods, and removes it when the test ends.
func runDemo(ctx context.Context, t *testing.T, name string) []corev1.Pod {
	t.Helper()
	return applyDemo(ctx, t, findDemo(t, name))
}

func applyDemo(ctx context.Context, t *testing.T, d env.Demo) []corev1.Pod {
	t.Helper()
	must(t, cluster.Apply(ctx, d))
	t.Cleanup(func() {
		if err := cluster.Remove(context.WithoutCancel(ctx), d); err != nil {
			t.Error(err)
		}
	})
	pods, err := cluster.WaitSettled(ctx, d)
	must(t, err)
	return pods
}

// looksAtTheNode has the demos whose checks look at devices that are not theirs, such as the groups that others asked for.
var looksAtTheNode = []string{"gpu-fault", "program-fault"}

// TestDemos runs the demos. Demos that leave room for others run last, side by side.
func TestDemos(t *testing.T) {
	demos, err := cluster.Demos()
	must(t, err)
	t.Cleanup(func() { checkClean(context.WithoutCancel(t.Context()), t) })
	// Demos with the same settings share an upgrade of the chart.
	slices.SortStableFunc(demos, func(a, b env.Demo) int {
		last := func(d env.Demo) int { return slices.Index(looksAtTheNode, d.Name) }
		return cmp.Or(strings.Compare(b.Settings, a.Settings), last(a)-last(b))
	})
	for _, d := range demos {
		beside := !d.Alone && d.Settings == "" && !slices.Contains(looksAtTheNode, d.Name)
		t.Run(d.Name, func(t *testing.T) {
			if beside {
				t.Parallel()
			}
			ctx := e2etest.Context(t, testLimit)
			if !beside {
				t.Cleanup(func() { checkClean(context.WithoutCancel(ctx), t) })
				must(t, cluster.Configure(ctx, d.Settings))
			}
			pods := runDemo(ctx, t, d.Name)
			if len(d.Steps) > 0 {
				story, err := cluster.Play(ctx, d)
				t.Log(story)
				must(t, err)
				if want := demoStories[d.Name]; want == "" || !strings.Contains(story, want) {
					t.Errorf("the steps show no %q", want)
				}
				pods, err = cluster.WaitSettled(ctx, d.AfterSteps())
				must(t, err)
			}
			owners := map[string]string{}
			taken := map[string]int64{}
			for _, p := range pods {
				if p.Status.Phase == corev1.PodPending {
					if cluster.PendingReason(ctx, p) == "" {
						t.Errorf("%s is pending without a reason", p.Name)
					}
					continue
				}
				if p.Labels["batch.kubernetes.io/job-name"] != "" {
					continue // It may end at any time, and then its devices are free.
				}
				checkPod(ctx, t, p)
				for claim, devices := range devicesByClaim(ctx, t, p) {
					for _, device := range devices {
						if bytes, shared := shareBytes(ctx, t, p, claim, device); shared {
							taken[device+" "+claim] = bytes
							continue
						}
						if other, taken := owners[device]; taken && other != claim {
							t.Errorf("%s is held by claim %s and claim %s", device, other, claim)
						}
						owners[device] = claim
					}
				}
			}
			checkSharesFit(ctx, t, taken)
			if check := demoChecks[d.Name]; check != nil {
				check(ctx, t, pods)
			}
		})
	}
	must(t, cluster.Configure(t.Context(), "")) // For those that run side by side.
	for name := range demoChecks {
		found := false
		for _, d := range demos {
			found = found || d.Name == name
		}
		if !found {
			t.Errorf("demo %s is checked and does not exist", name)
		}
	}
}

// devicesByClaim lists the GPUs of a pod by claim, with those of a group one by one, and without claims that only
// monitor.
func devicesByClaim(ctx context.Context, t *testing.T, p corev1.Pod) map[string][]string {
	t.Helper()
	claims, err := cluster.Claims(ctx, p)
	must(t, err)
	out := map[string][]string{}
	for _, c := range claims {
		for _, r := range env.Results(c) {
			if r.AdminAccess == nil || !*r.AdminAccess {
				out[c.Name] = append(out[c.Name], expandGroups(t, []string{r.Device})...)
			}
		}
	}
	return out
}

// demoStories holds a part of what the steps of each demo show.
var demoStories = map[string]string{
	"budget":   "denied the request: GPU budget demo-budget/default is exhausted: GPUs: it asks for 1, 1.25 of 1.5 are used",
	"pack":     " after 1 move:\n  1. move demo-pack/small-",
	"priority": "1 pod of lower priority leaves node ",
}

// demoChecks holds the checks of single demos, in addition to the checks of every container.
var demoChecks = map[string]func(context.Context, *testing.T, []corev1.Pod){
	"one-gpu":                  checkDevices(1),
	"gpu-fault":                checkGPUFault,
	"gpu-lost":                 checkGPULost,
	"program-fault":            checkProgramFault,
	"two-containers-one-claim": checkDevices(1),
	"two-pods-one-claim":       checkDevices(1),
	"eight-gpus":               checkDevices(8),
	"by-model-cel":             checkDevices(1),
	"driver-only-class":        checkDevices(1),
	"extended-resource":        checkDevices(2),
	"plugin-workloads":         checkDevices(8),
	"deployment-of-8":          checkDevices(8),
	"first-available":          checkDevices(1),
	"admin-access":             checkMonitor,
	"mig-one":                  checkDevices(1),
	"mig-four-of-one-gpu":      checkOneGPU(4),
	"mig-mixed":                checkOneGPU(4),
	"mig-and-whole":            checkDevices(5),
	"mig-extended-resource":    checkDevices(1),
	"mig-fill":                 checkDevices(16),
	"mig-queue":                checkQueueEnds,
	"use-and-cost":             checkDevices(3),
	"nvlink-four":              checkOneNVLinkGroup(4),
	"quota":                    checkQuotaEvent,
	"budget":                   checkBudget,
	"nvlink-groups":            checkDevices(8),
	"nvlink-eight":             checkTopologyEnv,
	"nvlink-job":               checkDevices(8),
	"nvlink-fill":              checkDevices(7),
	"pack":                     checkDevices(6),
	"priority":                 checkDevices(8),
	"fraction-four":            checkShares(4),
	"fraction-refused":         checkSharesOn(2, 1),
	"fraction-users":           checkShares(2),
	"fraction-two-processes":   checkProcesses,
	"fraction-two-containers":  checkSharesByRequest,
	"fraction-compute":         checkShares(2),
	"fraction-of-mig":          checkShares(2),
	"fraction-mixed":           checkShares(2),
	"sharing-mps":              checkConfiguredLimits,
	"sharing-time-slicing":     checkLongTimeSlice,
	"replicas":                 checkShares(12),
	"replicas-mig":             checkShares(8),
}

// checkDevices checks the number of different GPUs of a demo's pods.
func checkDevices(want int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		held := map[string]bool{}
		for _, p := range pods {
			for _, devices := range devicesByClaim(ctx, t, p) {
				for _, d := range devices {
					held[d] = true
				}
			}
		}
		if len(held) != want {
			t.Errorf("the pods hold %d GPUs, want %d: %v", len(held), want, held)
		}
	}
}

// checkMonitor checks that the monitoring pod sees the other pod's GPU.
func checkMonitor(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	var using, watching []string
	for _, p := range pods {
		view, err := cluster.Inspect(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		if len(devicesByClaim(ctx, t, p)) > 0 {
			using = append(using, view.UUIDs()...)
		} else {
			watching = append(watching, view.UUIDs()...)
		}
	}
	if len(using) == 0 {
		t.Fatal("no pod uses a GPU")
	}
	seen := map[string]bool{}
	for _, uuid := range watching {
		seen[uuid] = true
	}
	for _, uuid := range using {
		if !seen[uuid] {
			t.Errorf("GPU %s is in use and not watched; the monitor sees %v", uuid, watching)
		}
	}
}
