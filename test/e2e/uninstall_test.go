//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
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
