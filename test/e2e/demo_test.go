//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"gpu-dra-driver/test/e2e/env"
)

// play applies a demo, gives its settled pods, and removes it when the test ends.
func play(ctx context.Context, t *testing.T, name string) []corev1.Pod {
	t.Helper()
	demos, err := s.Demos()
	must(t, err)
	for _, d := range demos {
		if d.Name != name {
			continue
		}
		must(t, s.Apply(ctx, d))
		t.Cleanup(func() {
			if err := s.Remove(context.WithoutCancel(ctx), d); err != nil {
				t.Error(err)
			}
		})
		pods, err := s.Settled(ctx, d)
		must(t, err)
		return pods
	}
	t.Fatalf("no demo %q", name)
	return nil
}

func TestDemos(t *testing.T) {
	demos, err := s.Demos()
	must(t, err)
	t.Cleanup(func() { must(t, s.Configure(context.WithoutCancel(t.Context()), "")) })
	for _, d := range demos {
		t.Run(d.Name, func(t *testing.T) {
			ctx := limited(t)
			t.Cleanup(func() { whole(context.WithoutCancel(ctx), t) })
			must(t, s.Configure(ctx, d.Settings))
			pods := play(ctx, t, d.Name)
			owners := map[string]string{}
			taken := map[string]int64{}
			for _, p := range pods {
				if p.Status.Phase == corev1.PodPending {
					if s.Waiting(ctx, p) == "" {
						t.Errorf("%s is pending without a reason", p.Name)
					}
					continue
				}
				if p.Labels["batch.kubernetes.io/job-name"] != "" {
					continue // It ends when it pleases, and its devices are another's then.
				}
				inside(ctx, t, p)
				for claim, devices := range exclusive(ctx, t, p) {
					for _, device := range devices {
						if bytes, shared := shares(ctx, t, p, claim, device); shared {
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
			fits(ctx, t, taken)
			if check := more[d.Name]; check != nil {
				check(ctx, t, pods)
			}
		})
	}
	for name := range more {
		found := false
		for _, d := range demos {
			found = found || d.Name == name
		}
		if !found {
			t.Errorf("demo %s is checked and does not exist", name)
		}
	}
}

// exclusive lists by claim the GPUs that a pod does not merely watch, those of a group one by one.
func exclusive(ctx context.Context, t *testing.T, p corev1.Pod) map[string][]string {
	t.Helper()
	claims, err := s.Claims(ctx, p)
	must(t, err)
	out := map[string][]string{}
	for _, c := range claims {
		for _, r := range env.Results(c) {
			if r.AdminAccess == nil || !*r.AdminAccess {
				out[c.Name] = append(out[c.Name], apart(t, []string{r.Device})...)
			}
		}
	}
	return out
}

// more is what single demos promise beyond what holds for every container.
var more = map[string]func(context.Context, *testing.T, []corev1.Pod){
	"one-gpu":                  total(1),
	"two-containers-one-claim": total(1),
	"two-pods-one-claim":       total(1),
	"eight-gpus":               total(8),
	"by-model-cel":             total(1),
	"driver-only-class":        total(1),
	"extended-resource":        total(2),
	"deployment-of-8":          total(8),
	"first-available":          total(1),
	"admin-access":             watched,
	"mig-one":                  total(1),
	"mig-four-of-one-gpu":      onOneGPU(4),
	"mig-mixed":                onOneGPU(4),
	"mig-and-whole":            total(5),
	"mig-extended-resource":    total(1),
	"mig-56":                   total(56),
	"mig-queue":                drained,
	"nvlink-four":              onOneIsland(4),
	"quota":                    overQuota,
	"nvlink-groups":            total(8),
	"nvlink-eight":             toldOfEight,
	"nvlink-job":               total(8),
	"nvlink-fill":              total(7),
	"fraction-four":            fractions(4, 1),
	"fraction-refused":         fractions(2, 1),
	"fraction-users":           fractions(2, 1),
	"fraction-two-processes":   processes,
	"fraction-compute":         fractions(2, 1),
	"fraction-of-mig":          fractions(2, 1),
	"fraction-mixed":           fractions(2, 1),
	"sharing-mps":              limited50,
	"sharing-time-slicing":     longSlices,
	"replicas-32":              fractions(32, 8),
	"replicas-mig-28":          fractions(28, 7),
}

// total checks how many different GPUs a demo's pods hold.
func total(want int) func(context.Context, *testing.T, []corev1.Pod) {
	return func(ctx context.Context, t *testing.T, pods []corev1.Pod) {
		t.Helper()
		held := map[string]bool{}
		for _, p := range pods {
			for _, devices := range exclusive(ctx, t, p) {
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

// watched checks that the monitoring pod sees the GPU that the other one uses.
func watched(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	var using, watching []string
	for _, p := range pods {
		view, err := s.Look(ctx, p.Namespace, p.Name, p.Spec.Containers[0].Name)
		must(t, err)
		if len(exclusive(ctx, t, p)) > 0 {
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
