//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/test/e2e/env"
)

// waitClass waits until a class exists, or does not.
func waitClass(ctx context.Context, t *testing.T, name string, there bool) *resourceapi.DeviceClass {
	t.Helper()
	var out *resourceapi.DeviceClass
	eventually(ctx, t, fmt.Sprintf("DeviceClass %s to be there: %t", name, there), func(ctx context.Context) (bool, string) {
		c, err := cluster.Client.ResourceV1().DeviceClasses().Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, err.Error()
		}
		out = c
		return (err == nil) == there, fmt.Sprint(err)
	})
	return out
}

func TestDeviceClasses_GPUModelsChange_FollowThem(t *testing.T) {
	ctx := testContext(t)
	for name, resource := range map[string]string{
		"nvidia-h100-80gb-hbm3.gpu.nvidia.com": "", "nvidia-l40s.gpu.nvidia.com": "",
		"mig-1g.10gb.nvidia.com": "nvidia.com/mig-1g.10gb", "mig-1g.10gb.me.nvidia.com": "nvidia.com/mig-1g.10gb.me",
		"nvlink-4.gpu.nvidia.com": "",
	} {
		c := waitClass(ctx, t, name, true)
		if got := c.Spec.ExtendedResourceName; resource != "" && (got == nil || *got != resource) {
			t.Errorf("%s has the extended resource %v, want %s", name, got, resource)
		}
	}
	// The controller restores its deleted or changed class, and after a while the chart's.
	classes := cluster.Client.ResourceV1().DeviceClasses()
	must(t, classes.Delete(ctx, env.Driver, metav1.DeleteOptions{}))
	defer waitClass(ctx, t, env.Driver, true)
	must(t, classes.Delete(ctx, "nvidia-l40s.gpu.nvidia.com", metav1.DeleteOptions{}))
	waitClass(ctx, t, "nvidia-l40s.gpu.nvidia.com", true)
	_, err := classes.Patch(ctx, "mig-1g.10gb.nvidia.com", types.MergePatchType, []byte(`{"spec":{"extendedResourceName":"example.com/other"}}`), metav1.PatchOptions{})
	must(t, err)
	eventually(ctx, t, "the class as it should be", func(ctx context.Context) (bool, string) {
		c, err := classes.Get(ctx, "mig-1g.10gb.nvidia.com", metav1.GetOptions{})
		return err == nil && *c.Spec.ExtendedResourceName == "nvidia.com/mig-1g.10gb", fmt.Sprint(err)
	})
	// The boards of the second node are exchanged. The administrator already has a class with the new model's name.
	own := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "tesla-t4.gpu.nvidia.com"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: `device.driver == "gpu.nvidia.com" && false`}}},
	}}
	_, err = classes.Create(ctx, own, metav1.CreateOptions{})
	must(t, err)
	// A pending claim names the class that is deleted.
	claims := cluster.Client.ResourceV1().ResourceClaims("default")
	_, err = claims.Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "waits"}, Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "nvidia-l40s.gpu.nvidia.com"}}}},
	}}, metav1.CreateOptions{})
	must(t, err)
	replaceGPUs(ctx, t, "t4-1", 9)
	eventually(ctx, t, "the labels of the new boards", func(ctx context.Context) (bool, string) {
		n, err := cluster.Client.CoreV1().Nodes().Get(ctx, "onenode-2", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return n.Labels["nvidia.com/gpu.product"] == "Tesla-T4", n.Labels["nvidia.com/gpu.product"]
	})
	if c := waitClass(ctx, t, own.Name, true); c.Labels != nil || c.Spec.Selectors[0].CEL.Expression != own.Spec.Selectors[0].CEL.Expression {
		t.Errorf("the administrator's class is changed: %+v", c)
	}
	waitClass(ctx, t, "nvidia-l40s.gpu.nvidia.com", true)
	must(t, claims.Delete(ctx, "waits", metav1.DeleteOptions{}))
	waitClass(ctx, t, "nvidia-l40s.gpu.nvidia.com", false)
	must(t, classes.Delete(ctx, own.Name, metav1.DeleteOptions{}))
	waitClass(ctx, t, own.Name, true) // Now the controller owns it.
	replaceGPUs(ctx, t, "l40s-4", 12)
	waitClass(ctx, t, "nvidia-l40s.gpu.nvidia.com", true)
	waitClass(ctx, t, own.Name, false)
}

// replaceGPUs installs other boards in the second node.
func replaceGPUs(ctx context.Context, t *testing.T, profile string, total int) {
	t.Helper()
	must(t, cluster.SimOn(ctx, 2, "down"))
	must(t, cluster.SimOn(ctx, 2, "up", "--profile", profile))
	// The driver's pods still have mounts of the old boards, because the node was not rebooted.
	const components = "app.kubernetes.io/component in (kubelet-plugin, mps-supervisor)"
	pods := cluster.Client.CoreV1().Pods(env.Namespace)
	must(t, pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{
		FieldSelector: "spec.nodeName=onenode-2", LabelSelector: components,
	}))
	must(t, cluster.WaitPublished(ctx, total))
	// A pod that starts late makes directories in the boards' root, and the next boards need an empty one.
	eventually(ctx, t, "the node's pods", func(ctx context.Context) (bool, string) {
		list, err := pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=onenode-2", LabelSelector: components})
		if err != nil {
			return false, err.Error()
		}
		ready := 0
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		return ready == 2 && len(list.Items) == 2, fmt.Sprintf("%d of %d pods are ready", ready, len(list.Items))
	})
}

// TestController_NothingChanges_WritesNothing restarts both controllers, and makes a node's slices vanish and return.
func TestController_NothingChanges_WritesNothing(t *testing.T) {
	ctx := testContext(t)
	waitClass(ctx, t, "nvidia-l40s.gpu.nvidia.com", true)
	versions := func() string {
		var out strings.Builder
		list, err := cluster.Client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, c := range list.Items {
			if c.Name != sampleClass {
				fmt.Fprintln(&out, c.Name, c.ResourceVersion)
			}
		}
		nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, n := range nodes.Items {
			fmt.Fprintln(&out, n.Name, n.Labels, n.Annotations)
		}
		return out.String()
	}
	before := versions()
	_, err := cluster.Kubectl(ctx, "-n", "gpu-dra-driver", "rollout", "restart", "deployment/gpu-dra-driver-controller")
	must(t, err)
	must(t, cluster.Node(ctx, "restart", "--node", "2", "kubelet")) // A restart removes the node's slices; the plugin publishes them again.
	_, err = cluster.Kubectl(ctx, "-n", "gpu-dra-driver", "rollout", "status", "deployment/gpu-dra-driver-controller", "--timeout=90s")
	must(t, err)
	must(t, cluster.WaitPublished(ctx, 12))
	waitLeader(ctx, t)
	if after := versions(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// sampleClass is the class that waitLeader changes; every version of Kubernetes gets it.
const sampleClass = "nvidia-h100-80gb-hbm3.gpu.nvidia.com"

// waitLeader waits until a controller restores a changed class.
func waitLeader(ctx context.Context, t *testing.T) {
	t.Helper()
	classes := cluster.Client.ResourceV1().DeviceClasses()
	_, err := classes.Patch(ctx, sampleClass, types.MergePatchType, []byte(`{"spec":{"selectors":[{"cel":{"expression":"false"}}]}}`), metav1.PatchOptions{})
	must(t, err)
	eventually(ctx, t, "the class as it should be", func(ctx context.Context) (bool, string) {
		c, err := classes.Get(ctx, sampleClass, metav1.GetOptions{})
		return err == nil && c.Spec.Selectors[0].CEL.Expression != "false", fmt.Sprint(err)
	})
}

// TestDeviceClass_OtherOfSameResourceDeleted_PodsStillStart is about the scheduler, which forgets an extended resource
// with one of its classes.
func TestDeviceClass_OtherOfSameResourceDeleted_PodsStillStart(t *testing.T) {
	ctx := testContext(t)
	classes := cluster.Client.ResourceV1().DeviceClasses()
	chart, err := classes.Get(ctx, env.Driver, metav1.GetOptions{})
	must(t, err)
	_, err = classes.Create(ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "other.example.com"}, Spec: chart.Spec}, metav1.CreateOptions{})
	must(t, err)
	must(t, classes.Delete(ctx, "other.example.com", metav1.DeleteOptions{}))
	eventually(ctx, t, "the chart's class to be written again", func(ctx context.Context) (bool, string) {
		c, err := classes.Get(ctx, env.Driver, metav1.GetOptions{})
		return err == nil && c.ResourceVersion != chart.ResourceVersion, fmt.Sprint(err)
	})
	demos, err := cluster.Demos()
	must(t, err)
	i := slices.IndexFunc(demos, func(d env.Demo) bool { return d.Name == "extended-resource" })
	must(t, cluster.Apply(ctx, demos[i]))
	t.Cleanup(func() { must(t, cluster.Remove(context.WithoutCancel(ctx), demos[i])) })
	_, err = cluster.WaitSettled(ctx, demos[i])
	must(t, err)
}
