//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package recipes

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

// TestResize_PodHoldsGPU_ClaimAndContainerStay doubles the CPU of a pod that runs.
func TestResize_PodHoldsGPU_ClaimAndContainerStay(t *testing.T) {
	ctx := e2etest.Context(t, 4*time.Minute)
	const namespace = "recipe-resize"
	apply(ctx, t, filepath.Join(cluster.Tree, "demo/recipes/resize.yaml"))
	running, err := cluster.WaitPods(ctx, namespace, 1)
	must(t, err)
	before := running[0]
	claims, err := cluster.Claims(ctx, before)
	must(t, err)
	view, err := cluster.Inspect(ctx, namespace, before.Name, "probe")
	must(t, err)
	resize := func(resources string) error {
		_, err := cluster.Kubectl(ctx, "-n", namespace, "patch", "pod", before.Name, "--subresource=resize",
			`-p={"spec": {"containers": [{"name": "probe", "resources": `+resources+`}]}}`)
		return err
	}
	must(t, resize(`{"requests": {"cpu": "200m"}, "limits": {"cpu": "400m"}}`))
	var after corev1.Pod
	must(t, cluster.Eventually(ctx, "the CPU to be changed", time.Minute, func(context.Context) (bool, string) {
		after = pods(ctx, t, namespace, "")[0]
		r := after.Status.ContainerStatuses[0].Resources
		return r != nil && r.Limits.Cpu().MilliValue() == 400, fmt.Sprintf("%+v %+v", r, after.Status.Conditions)
	}))
	was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if is.ContainerID != was.ContainerID || is.RestartCount != 0 || after.UID != before.UID {
		t.Errorf("the container was %s, and is %s after %d restarts", was.ContainerID, is.ContainerID, is.RestartCount)
	}
	kept, err := cluster.Claims(ctx, after)
	must(t, err)
	if len(kept) != 1 || kept[0].UID != claims[0].UID || !slices.EqualFunc(env.Results(kept[0]), env.Results(claims[0]), func(a, b resourceapi.DeviceRequestAllocationResult) bool { return a.Device == b.Device }) {
		t.Errorf("the claims were %+v, and are %+v", claims, kept)
	}
	prepared(ctx, t, []string{string(claims[0].UID)})
	// The container's program is still the first one, so another one looks.
	out, err := cluster.Kubectl(ctx, "-n", namespace, "exec", before.Name, "--", "/usr/bin/probe", "look")
	must(t, err)
	var now env.View
	must(t, json.Unmarshal([]byte(out), &now))
	if got := now.UUIDs(); len(got) != 1 || !slices.Equal(got, view.UUIDs()) || !slices.Equal(now.GPUs(), view.GPUs()) {
		t.Errorf("the container had %v, and has %v with the nodes %v", view.UUIDs(), got, now.GPUs())
	}

	if err := resize(`{"claims": [{"name": "gpu", "request": "gpu"}]}`); err == nil || !strings.Contains(err.Error(), "only cpu and memory resources are mutable") {
		t.Errorf("a changed claim was not refused: %v", err)
	}
	_, err = cluster.Kubectl(ctx, "delete", "namespace", namespace, "--wait=false")
	must(t, err)
	released(ctx, t)
}
