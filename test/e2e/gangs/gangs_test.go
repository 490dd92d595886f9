//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package gangs runs the shipped images and chart on a Kubernetes with gang scheduling: with the feature gates
// GenericWorkload and DRAWorkloadResourceClaims, and scheduling.k8s.io/v1beta1.
package gangs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var (
	s    *env.Env
	must = e2etest.Must
)

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, cluster *env.Env) error {
		s = cluster
		if err := s.Install(ctx, "hgx-h100", 8); err != nil {
			return err
		}
		return s.Eventually(ctx, "the class of groups of four", 60*time.Second, func(ctx context.Context) (bool, string) {
			_, err := s.Client.ResourceV1().DeviceClasses().Get(ctx, "nvlink-4.gpu.nvidia.com", metav1.GetOptions{})
			return err == nil, fmt.Sprint(err)
		})
	})
}

func apply(ctx context.Context, t *testing.T, file string) {
	t.Helper()
	_, err := s.Kubectl(ctx, "apply", "-f", s.Tree+"/test/e2e/gangs/testdata/"+file)
	must(t, err)
}

// waits waits until count pods of a namespace cannot be scheduled, and checks that their claims have no devices.
func waits(ctx context.Context, t *testing.T, namespace string, count int) {
	t.Helper()
	must(t, s.Eventually(ctx, "the gang of "+namespace+" to wait", 60*time.Second, func(ctx context.Context) (bool, string) {
		waiting, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		must(t, err)
		n := 0
		for _, p := range waiting.Items {
			if env.Unschedulable(p) != "" && p.Status.Phase == corev1.PodPending {
				n++
			}
		}
		return n == count, fmt.Sprintf("%d pods wait", n)
	}))
	waiting, err := s.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, c := range waiting.Items {
		if c.Status.Allocation != nil {
			t.Errorf("%s has devices while its gang waits", c.Name)
		}
	}
}

// shareFour checks that all pods see the same four GPUs.
func shareFour(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	var first []string
	for _, p := range pods {
		view, err := s.Inspect(ctx, p.Namespace, p.Name, "probe")
		must(t, err)
		if first == nil {
			first = view.UUIDs()
		}
		if got := view.UUIDs(); len(got) != 4 || !slices.Equal(got, first) {
			t.Errorf("%s sees %v, the first pod %v", p.Name, got, first)
		}
	}
}

// remove removes namespaces, and waits until there are no claims.
func remove(ctx context.Context, t *testing.T, namespaces ...string) {
	t.Helper()
	_, err := s.Kubectl(ctx, append([]string{"delete", "--wait=false", "namespace"}, namespaces...)...)
	must(t, err)
	must(t, s.Eventually(ctx, "no claim left", 90*time.Second, func(ctx context.Context) (bool, string) {
		left, err := s.Client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, fmt.Sprint(err)
	}))
}

// TestGang_ClaimOfPodGroup_SharedReportedAndReleased follows a gang whose pods share an NVLink group, beside one that does not
// fit.
func TestGang_ClaimOfPodGroup_SharedReportedAndReleased(t *testing.T) {
	ctx := e2etest.Context(t, 8*time.Minute)
	apply(ctx, t, "gang.yaml")
	pods, err := s.WaitPods(ctx, "gang", 2)
	must(t, err)
	claims, err := s.Client.ResourceV1().ResourceClaims("gang").List(ctx, metav1.ListOptions{})
	must(t, err)
	if len(claims.Items) != 1 || len(env.Results(claims.Items[0])) != 1 {
		t.Fatalf("claims of the gang: %+v", claims.Items)
	}
	users := claims.Items[0].Status.ReservedFor
	if len(users) != 1 || users[0].Resource != "podgroups" || users[0].Name != "workers" {
		t.Errorf("the claim is reserved for %+v", users)
	}
	shown, err := s.KubectlGPU(ctx, "claims", "--namespace", "gang")
	must(t, err)
	if !strings.Contains(shown, "podgroup/workers") {
		t.Errorf("kubectl gpu claims shows no user:\n%s", shown)
	}
	shareFour(ctx, t, pods)

	apply(ctx, t, "waits.yaml")
	waits(ctx, t, "gang-waits", 2)

	// A fault of a GPU is reported to the PodGroup, because the claim does not name the pods.
	device := env.Results(claims.Items[0])[0].Device
	d, err := gpu.ParseName(device)
	must(t, err)
	must(t, s.Eventually(ctx, "an Event on the PodGroup", 60*time.Second, func(ctx context.Context) (bool, string) {
		// XIDs of before the plugin's event set are lost.
		must(t, s.Sim(ctx, "inject", "xid", "31", d.PCIAddress, "--pid", "812", "--name", "python"))
		out, err := s.Kubectl(ctx, "events", "--namespace", "gang", "--for", "podgroup/workers", "--types", "Warning")
		must(t, err)
		return strings.Contains(out, "XIDError") && strings.Contains(out, device), out
	}))

	// The second gang starts once the first one has ended.
	_, err = s.Kubectl(ctx, "delete", "namespace", "gang", "--wait=false")
	must(t, err)
	_, err = s.WaitPods(ctx, "gang-waits", 2)
	must(t, err)
	remove(ctx, t, "gang-waits")
}

// TestGang_FirstAvailable_ChosenOnceForAllPods has alternatives in the claim of a PodGroup, and in the claims of its pods.
func TestGang_FirstAvailable_ChosenOnceForAllPods(t *testing.T) {
	ctx := e2etest.Context(t, 4*time.Minute)
	// While a GPU is in use, no group of eight is free.
	_, err := s.Kubectl(ctx, "apply", "-f", s.Tree+"/demo/one-gpu.yaml")
	must(t, err)
	_, err = s.WaitPods(ctx, "demo-one-gpu", 1)
	must(t, err)
	apply(ctx, t, "first-available-shared.yaml")
	pods, err := s.WaitPods(ctx, "gang-shared", 2)
	must(t, err)
	shareFour(ctx, t, pods)
	remove(ctx, t, "gang-shared", "demo-one-gpu")

	// Two pods would take all GPUs, by their first alternative. A smaller one for each would do.
	apply(ctx, t, "first-available-each.yaml")
	waits(ctx, t, "gang-each", 3)
	remove(ctx, t, "gang-each")
}
