//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package gangs runs the shipped images and chart on a Kubernetes with gang scheduling: with the feature gates
// GenericWorkload and DRAWorkloadResourceClaims, and scheduling.k8s.io/v1beta1.
package gangs

import (
	"context"
	"fmt"
	"os"
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

var must = e2etest.Must

// TestGang_ClaimOfPodGroup_SharedReportedAndReleased follows a gang whose pods share an NVLink group, beside one that does not
// fit.
func TestGang_ClaimOfPodGroup_SharedReportedAndReleased(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	s, err := env.FromEnvironment(os.Stderr)
	must(t, err)
	must(t, s.Install(ctx, "hgx-h100", 8))
	must(t, s.Eventually(ctx, "the class of groups of four", 60*time.Second, func(ctx context.Context) (bool, string) {
		_, err := s.Client.ResourceV1().DeviceClasses().Get(ctx, "nvlink-4.gpu.nvidia.com", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	}))
	apply := func(file string) {
		_, err := s.Kubectl(ctx, "apply", "-f", s.Tree+"/test/e2e/gangs/testdata/"+file)
		must(t, err)
	}
	apply("gang.yaml")
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

	apply("waits.yaml")
	must(t, s.Eventually(ctx, "the second gang to wait", 60*time.Second, func(ctx context.Context) (bool, string) {
		waiting, err := s.Client.CoreV1().Pods("gang-waits").List(ctx, metav1.ListOptions{})
		must(t, err)
		n := 0
		for _, p := range waiting.Items {
			if env.Unschedulable(p) != "" && p.Status.Phase == corev1.PodPending {
				n++
			}
		}
		return n == 2, fmt.Sprintf("%d pods wait", n)
	}))
	waiting, err := s.Client.ResourceV1().ResourceClaims("gang-waits").List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, c := range waiting.Items {
		if c.Status.Allocation != nil {
			t.Errorf("%s has devices while its gang waits", c.Name)
		}
	}

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
	_, err = s.Kubectl(ctx, "delete", "namespace", "gang-waits", "--wait=false")
	must(t, err)
	must(t, s.Eventually(ctx, "no claim left", 90*time.Second, func(ctx context.Context) (bool, string) {
		left, err := s.Client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		return err == nil && len(left.Items) == 0, fmt.Sprint(err)
	}))
}
