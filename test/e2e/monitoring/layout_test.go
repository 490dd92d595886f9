//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const holes = "holes"

// hold creates a pod with a claim of a template in the namespace holes.
func (n *node) hold(ctx context.Context, t *testing.T, name, template string) {
	t.Helper()
	must(t, n.apply(ctx, t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 2
  resourceClaims: [{name: gpu, resourceClaimTemplateName: %s}]
  containers:
    - name: probe
      image: gpu-dra-driver/probe:0.1.0
      imagePullPolicy: IfNotPresent
      args: [look, --hold]
      resources: {claims: [{name: gpu}]}
`, name, holes, template)))
}

// checkFragmentation leaves one GPU free, fills it with partitions of a slice, and ends every second pod. No two free slices
// are neighbours then.
func (n *node) checkFragmentation(ctx context.Context, t *testing.T) {
	n.wait(ctx, t, "GPUFragmented", `model=~".+"`, false, nil)
	manifest := readFile(t, filepath.Join(n.Tree, "test", "e2e", "monitoring", "testdata", "holes.yaml"))
	must(t, n.apply(ctx, t, strings.ReplaceAll(manifest, "BOARD", n.board.UUID)))
	n.hold(ctx, t, "whole", "whole")
	n.hold(ctx, t, "half", "half")
	_, err := n.WaitPods(ctx, holes, 2)
	must(t, err)
	for i := range 7 {
		n.hold(ctx, t, fmt.Sprint("small-", i), "small")
	}
	_, err = n.WaitPods(ctx, holes, 9)
	must(t, err)
	claims, err := n.Client.ResourceV1().ResourceClaims(holes).List(ctx, metav1.ListOptions{})
	must(t, err)
	pods := map[string]string{}
	for _, c := range claims.Items {
		if holder := c.Status.ReservedFor[0].Name; strings.HasPrefix(holder, "small-") {
			pods[c.Status.Allocation.Devices.Results[0].Device] = holder
		}
	}
	devices := slices.Sorted(maps.Keys(pods))
	for i, d := range devices {
		if i%2 == 1 {
			_, err := n.Kubectl(ctx, "delete", "-n", holes, "pod/"+pods[d])
			must(t, err)
		}
	}
	t.Logf("partitions were %q", devices)
	n.wait(ctx, t, "GPUFragmented", `model="NVIDIA H100 80GB HBM3"`, true, nil)
	found, err := n.query(ctx, "gpu_dra_cluster_fragmentation_ratio")
	must(t, err)
	if len(found) != 1 || found[0].value() != .75 {
		t.Errorf("three of four free slices are in pieces, but the ratio is %v", found)
	}
	_, err = n.Kubectl(ctx, "delete", "namespace", holes)
	must(t, err)
	n.wait(ctx, t, "GPUFragmented", `model=~".+"`, false, nil)
}
