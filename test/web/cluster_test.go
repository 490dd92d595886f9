//go:build web && e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"gpu-dra-driver/test/e2e/env"
)

// TestCluster_Demos_PageEqualsLs follows a real cluster, in which the driver serves pods with partitions, shares and a group.
// The page is open before the pods exist.
func TestCluster_Demos_PageEqualsLs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cluster, err := env.FromEnvironment(os.Stderr)
	must(t, err)
	must(t, cluster.Install(ctx, "hgx-h100", 8))
	p := serveCluster(t, os.Getenv("KUBECONFIG"))
	p.open(1440, 1000)
	p.wait(shown)

	demos, err := cluster.Demos()
	must(t, err)
	applied := 0
	for _, d := range demos {
		if slices.Contains([]string{"mig-mixed", "nvlink-four", "sharing-mps"}, d.Name) {
			must(t, cluster.Apply(ctx, d))
			_, err := cluster.WaitSettled(ctx, d)
			must(t, err)
			applied++
		}
	}
	if applied != 3 {
		t.Fatalf("%d of 3 demos exist", applied)
	}
	diff := ""
	err = cluster.Eventually(ctx, "the page equals kubectl gpu ls", 10*time.Second, func(context.Context) (bool, string) {
		diff = cmp.Diff(p.ls(), p.shownGPUs())
		return diff == "", diff
	})
	if err != nil {
		t.Errorf("(-kubectl gpu ls -o json, +model of the page):\n%s", diff)
	}
	uses := eval[[]string](p, `[...document.querySelectorAll('[data-gpu]')].map((a) => a.ariaLabel)`)
	t.Log(uses)
	if len(uses) != 8 {
		t.Errorf("the page shows %d GPUs", len(uses))
	}

	// A claim is in the list of claims once it is made, and on its GPU once it is allocated.
	const namespace = "default"
	for i := range 2 { // The demos leave as many GPUs.
		name := fmt.Sprintf("made-%d", i)
		p.run(chromedp.Evaluate[chromedp.Void](`document.querySelector('#tab-claims').click()`))
		began := time.Now()
		_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim(namespace, name), metav1.CreateOptions{})
		must(t, err)
		p.wait(fmt.Sprintf(`document.body.innerText.includes('%s')`, name))
		listed := time.Since(began)
		p.run(chromedp.Evaluate[chromedp.Void](`document.querySelector('#tab-gpus').click()`))
		watched, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		must(t, err)
		_, err = cluster.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				Containers:     []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			},
		}, metav1.CreateOptions{})
		must(t, err)
		for allocated := false; !allocated; {
			var event watch.Event
			select {
			case event = <-watched.ResultChan():
			case <-time.After(time.Minute):
				t.Fatalf("the scheduler does not allocate claim %s", name)
			}
			if event.Object == nil {
				t.Fatal("the API server ended the watch of the claim")
			}
			if c, ok := event.Object.(*resourceapi.ResourceClaim); ok {
				allocated = c.Status.Allocation != nil
			}
		}
		watched.Stop()
		began = time.Now()
		p.wait(fmt.Sprintf(`[...document.querySelectorAll('[data-gpu]')].some((a) => a.ariaLabel.includes('%s/%s'))`, namespace, name))
		drawn := time.Since(began)
		t.Logf("claim %d is listed after %d ms, and on its GPU %d ms after its allocation", i+1, listed.Milliseconds(), drawn.Milliseconds())
		if listed > time.Second || drawn > time.Second {
			t.Errorf("claim %d is listed after %s, and on its GPU after %s", i+1, listed, drawn)
		}
	}
	if diff := cmp.Diff(p.ls(), p.shownGPUs()); diff != "" {
		t.Errorf("with two more claims (-kubectl gpu ls -o json, +model of the page):\n%s", diff)
	}
}
