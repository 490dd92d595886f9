//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpu-dra-driver/test/e2e/env"
)

// TestNamespace_Deleted_NothingIsDenied deletes the driver's namespace with the webhook and all policies, instead of
// uninstalling the chart, and installs it again.
func TestNamespace_Deleted_NothingIsDenied(t *testing.T) {
	ctx := testContext(t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, cluster.Helm(ctx))
		must(t, cluster.WaitPublished(ctx, 8))
	})
	must(t, cluster.Helm(ctx, "--values", filepath.Join(cluster.Tree, "deployments/helm/testdata/values/policies.yaml")))
	namespace := createNamespace(ctx, t, nil)
	five, bad := request("gpu", env.Driver), request("gpu", env.Driver)
	five.Exactly.Count = 5
	create := func(r resourceapi.DeviceRequest, parameters string) error {
		claim := &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{r}}},
		}
		if parameters != "" {
			claim.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
				Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: env.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
			}}}
		}
		_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	both := func() (byPolicy, byWebhook error) { return create(five, ""), create(bad, `{"kind":"nonsense"}`) }
	must(t, cluster.Eventually(ctx, "policy and webhook deny", 60*time.Second, func(context.Context) (bool, string) {
		a, b := both()
		return a != nil && b != nil, fmt.Sprint(a, b)
	}))
	webhooks := cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	must(t, cluster.Eventually(ctx, "the namespace owns the webhook", 60*time.Second, func(ctx context.Context) (bool, string) {
		c, err := webhooks.Get(ctx, env.Release+"-webhook", metav1.GetOptions{})
		return err == nil && len(c.OwnerReferences) == 1, fmt.Sprint(err)
	}))

	namespaces := cluster.Client.CoreV1().Namespaces()
	must(t, namespaces.Delete(ctx, env.Namespace, metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the namespace gone", 120*time.Second, func(ctx context.Context) (bool, string) {
		_, err := namespaces.Get(ctx, env.Namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	}))
	began := time.Now()
	must(t, cluster.Eventually(ctx, "claims are admitted", 60*time.Second, func(context.Context) (bool, string) {
		a, b := both()
		return a == nil && b == nil, fmt.Sprint(a, b)
	}))
	t.Logf("claims are admitted %s after the namespace is gone", time.Since(began).Round(time.Millisecond))
	must(t, cluster.Eventually(ctx, "the webhook's configuration deleted", 60*time.Second, func(ctx context.Context) (bool, string) {
		_, err := webhooks.Get(ctx, env.Release+"-webhook", metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	}))
}

// leftovers names the objects of the driver in the cluster and in its namespace, without GPU budgets, which are the users'.
func leftovers(ctx context.Context, t *testing.T) (out []string) {
	t.Helper()
	classes, err := cluster.Client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, c := range classes.Items {
		out = append(out, "class "+c.Name)
	}
	nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, n := range nodes.Items {
		for key := range n.Labels {
			if strings.Contains(key, "nvidia.com/") {
				out = append(out, "label "+key)
			}
		}
		for key := range n.Annotations {
			if strings.Contains(key, "gpu-dra-driver") || strings.Contains(key, "nvidia.com") {
				out = append(out, "annotation "+key)
			}
		}
	}
	leases, err := cluster.Client.CoordinationV1().Leases(env.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, l := range leases.Items {
		out = append(out, "lease "+l.Name)
	}
	configs, err := cluster.Client.CoreV1().ConfigMaps(env.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, c := range configs.Items {
		if c.Name != "kube-root-ca.crt" { // Kubernetes writes it into each namespace.
			out = append(out, "configmap "+c.Name)
		}
	}
	secrets, err := cluster.Client.CoreV1().Secrets(env.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, s := range secrets.Items {
		out = append(out, "secret "+s.Name)
	}
	slices.Sort(out)
	return out
}

// TestCleanup_AfterUninstall_LeavesNothing uninstalls the chart and removes the objects that this leaves.
func TestCleanup_AfterUninstall_LeavesNothing(t *testing.T) {
	ctx := testContext(t)
	if out, err := cluster.KubectlGPU(ctx, "cleanup", "-n", env.Namespace); err == nil || !strings.Contains(out, "nothing is removed, because the driver is installed") {
		t.Fatalf("cleanup beside the driver: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, cluster.Helm(ctx))
		must(t, cluster.WaitPublished(ctx, 8))
	})
	made := []string{"class nvlink-4.gpu.nvidia.com", "label nvidia.com/gpu.present", "lease dra-controller.gpu.nvidia.com", "configmap gpu-dra-driver-asked"}
	must(t, cluster.Eventually(ctx, "the controller has made its objects", time.Minute, func(ctx context.Context) (bool, string) {
		now := leftovers(ctx, t)
		missing := slices.DeleteFunc(slices.Clone(made), func(want string) bool { return slices.Contains(now, want) })
		return len(missing) == 0, "missing: " + strings.Join(missing, ", ")
	}))
	must(t, cluster.Uninstall(ctx))
	left := leftovers(ctx, t)
	t.Logf("uninstall leaves %d objects:\n%s", len(left), strings.Join(left, "\n"))
	for _, want := range made {
		if !slices.Contains(left, want) {
			t.Errorf("uninstall does not leave %s", want)
		}
	}
	kubectlGPU(ctx, t, "cleanup", "-n", env.Namespace, "--dry-run=server")
	if after := leftovers(ctx, t); !slices.Equal(left, after) {
		t.Errorf("the dry run leaves %v", after)
	}
	t.Log(kubectlGPU(ctx, t, "cleanup", "-n", env.Namespace))
	if after := leftovers(ctx, t); len(after) > 0 {
		t.Errorf("cleanup leaves %v", after)
	}
	if _, err := cluster.KubectlGPU(ctx, "cleanup", "-n", env.Namespace); err != nil {
		t.Errorf("a second cleanup: %v", err)
	}
}
