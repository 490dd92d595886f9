//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"gpu-dra-driver/test/e2e/env"
)

// TestWebhook_ReviewDemos_KubectlShowsErrorsAndWarnings applies the files of demo/reviews.
func TestWebhook_ReviewDemos_KubectlShowsErrorsAndWarnings(t *testing.T) {
	ctx := testContext(t)
	waitWebhook(ctx, t)
	for _, what := range []string{"denied", "warned"} {
		data, err := os.ReadFile(filepath.Join(cluster.Tree, "demo", "reviews", what+".yaml"))
		must(t, err)
		for i, object := range strings.Split(string(data), "\n---\n") {
			lines := strings.Split(object, "\n")
			if i == 0 {
				lines = lines[1:]
			}
			want := strings.TrimPrefix(lines[0], "# ")
			file := filepath.Join(t.TempDir(), "object.yaml")
			must(t, os.WriteFile(file, []byte(object), 0o600))
			out, err := cluster.Kubectl(ctx, "create", "--dry-run=server", "-f", file)
			prefix := "Warning: "
			if what == "denied" {
				prefix = env.Driver + ": the webhook of the GPU driver refuses the object"
			}
			if (err == nil) != (what == "warned") || !strings.Contains(out, prefix) || !strings.Contains(out, want) {
				t.Errorf("%s: kubectl says %q, want %q%q", lines[4], out, prefix, want)
			}
		}
	}
}

// newClaim returns a claim with parameters for a driver, or without parameters.
func newClaim(driver, parameters string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "c-"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: env.Driver}}},
	}}}
	if driver != "" {
		c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}}}}
	}
	return c
}

const validParameters = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`

func dryRunCreate(ctx context.Context, c *resourceapi.ResourceClaim) error {
	_, err := cluster.Client.ResourceV1().ResourceClaims("default").Create(ctx, c, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// waitWebhook waits until the webhook denies an invalid claim and allows a valid one.
func waitWebhook(ctx context.Context, t *testing.T) {
	t.Helper()
	eventually(ctx, t, "the webhook to answer", func(ctx context.Context) (bool, string) {
		wrong, well := dryRunCreate(ctx, newClaim(env.Driver, `{"kind":"x"}`)), dryRunCreate(ctx, newClaim(env.Driver, validParameters))
		return well == nil && wrong != nil && strings.Contains(wrong.Error(), "apiVersion"), fmt.Sprint(wrong, well)
	})
}

// TestWebhook_SlowConnections_ReviewsAreAnswered opens connections to both controllers, from the address of the API server,
// and sends a part of a review on each. Any pod can do so.
func TestWebhook_SlowConnections_ReviewsAreAnswered(t *testing.T) {
	ctx := testContext(t)
	waitWebhook(ctx, t)
	pods, err := cluster.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	must(t, err)
	attack, stop := context.WithCancel(ctx)
	var wg, begun sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for _, p := range pods.Items {
		for range 300 {
			begun.Add(1)
			wg.Go(func() {
				first := sync.OnceFunc(begun.Done)
				defer first()
				for attack.Err() == nil {
					dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
					c, err := dialer.DialContext(attack, "tcp", net.JoinHostPort(p.Status.PodIP, "9443"))
					if err != nil {
						continue
					}
					end := context.AfterFunc(attack, func() { _ = c.Close() })
					_, _ = io.WriteString(c, "POST /admit HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
					first()
					_, _ = io.Copy(io.Discard, c)
					end()
					_ = c.Close()
				}
			})
		}
	}
	begun.Wait()
	for range 20 {
		must(t, dryRunCreate(ctx, newClaim(env.Driver, validParameters)))
		if err := dryRunCreate(ctx, newClaim(env.Driver, `{"kind":"x"}`)); err == nil || !strings.Contains(err.Error(), "apiVersion") {
			t.Errorf("a wrong claim: %v", err)
		}
	}
}

// TestWebhook_ChartsClass_ReviewedIfChanged writes classes with the chart's names and labels.
func TestWebhook_ChartsClass_ReviewedIfChanged(t *testing.T) {
	ctx := testContext(t)
	waitWebhook(ctx, t)
	classes := cluster.Client.ResourceV1().DeviceClasses()
	class, err := classes.Get(ctx, "mig."+strings.TrimPrefix(env.Driver, "gpu."), metav1.GetOptions{})
	must(t, err)
	dry := metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}
	class.Labels["team"] = "a"
	_, err = classes.Update(ctx, class, dry)
	must(t, err)
	class.Spec.Selectors[0].CEL.Expression += ` && device.attributes["` + env.Driver + `"].nvlinkLinks > 4`
	if _, err := classes.Update(ctx, class, dry); err == nil || !strings.Contains(err.Error(), "no such key: nvlinkLinks") {
		t.Errorf("the chart's class with a selector that fails: %v", err)
	}
}

// TestWebhook_ControllerStopped_OnlyOurClaimsAreRefused stops both controllers.
func TestWebhook_ControllerStopped_OnlyOurClaimsAreRefused(t *testing.T) {
	ctx := testContext(t)
	waitWebhook(ctx, t)
	scale := func(n int) {
		t.Helper()
		_, err := cluster.Client.AppsV1().Deployments("gpu-dra-driver").Patch(context.WithoutCancel(ctx), "gpu-dra-driver-controller", types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{})
		must(t, err)
	}
	scale(0)
	t.Cleanup(func() { scale(2) })
	eventually(ctx, t, "no controller", func(ctx context.Context) (bool, string) {
		pods, err := cluster.Client.CoreV1().Pods("gpu-dra-driver").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
		return err == nil && len(pods.Items) == 0, fmt.Sprint(err)
	})
	eventually(ctx, t, "claims with our parameters to be refused", func(ctx context.Context) (bool, string) {
		err := dryRunCreate(ctx, newClaim(env.Driver, validParameters))
		return err != nil && strings.Contains(err.Error(), "parameters.gpu.nvidia.com"), fmt.Sprint(err)
	})
	for what, c := range map[string]*resourceapi.ResourceClaim{"another driver's": newClaim("other.example.com", `{"kind":"x"}`), "one without parameters": newClaim("", "")} {
		if err := dryRunCreate(ctx, c); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	scale(2)
	waitWebhook(ctx, t)
}

// TestWebhook_CertificateInvalid_Replaced writes an invalid certificate into the Secret
// and removes the authority.
func TestWebhook_CertificateInvalid_Replaced(t *testing.T) {
	ctx := testContext(t)
	waitWebhook(ctx, t)
	secrets := cluster.Client.CoreV1().Secrets("gpu-dra-driver")
	before, err := secrets.Get(ctx, "gpu-dra-driver-webhook-cert", metav1.GetOptions{})
	must(t, err)
	_, err = secrets.Patch(ctx, before.Name, types.MergePatchType, []byte(`{"data":{"tls.crt":"bm9uc2Vuc2U="}}`), metav1.PatchOptions{})
	must(t, err)
	eventually(ctx, t, "another certificate", func(ctx context.Context) (bool, string) {
		now, err := secrets.Get(ctx, before.Name, metav1.GetOptions{})
		return err == nil && strings.HasPrefix(string(now.Data[corev1.TLSCertKey]), "-----BEGIN") && string(now.Data[corev1.TLSCertKey]) != string(before.Data[corev1.TLSCertKey]), fmt.Sprint(err)
	})
	waitWebhook(ctx, t)
	must(t, secrets.Delete(ctx, before.Name, metav1.DeleteOptions{}))
	eventually(ctx, t, "a new Secret with a certificate", func(ctx context.Context) (bool, string) {
		now, err := secrets.Get(ctx, before.Name, metav1.GetOptions{})
		return err == nil && len(now.Data[corev1.TLSCertKey]) > 0 && now.UID != before.UID, fmt.Sprint(err)
	})
	waitWebhook(ctx, t)
	_, err = cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(ctx, "gpu-dra-driver-webhook", types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"},{"op":"remove","path":"/webhooks/1/clientConfig/caBundle"}]`), metav1.PatchOptions{})
	must(t, err)
	waitWebhook(ctx, t)
}

func TestController_APIServerRestarts_ServesAgain(t *testing.T) {
	ctx := testContext(t)
	must(t, cluster.Node(ctx, "restart", "kube-apiserver"))
	waitWebhook(ctx, t)
	waitLeader(ctx, t)
}

// TestClusterMetrics_TwoNodes_CountGPUsAndClaims reads the leader's metrics.
func TestClusterMetrics_TwoNodes_CountGPUsAndClaims(t *testing.T) {
	ctx := testContext(t)
	scrape := func(ctx context.Context) (string, error) {
		pods, err := cluster.Client.CoreV1().Pods("gpu-dra-driver").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
		if err != nil {
			return "", err
		}
		var all strings.Builder
		for _, p := range pods.Items {
			out, err := cluster.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/gpu-dra-driver/pods/" + p.Name + ":8080/proxy/metrics").DoRaw(ctx)
			if err != nil {
				return "", err
			}
			all.Write(out)
		}
		return all.String(), nil
	}
	has := func(lines ...string) {
		t.Helper()
		eventually(ctx, t, "the figures", func(ctx context.Context) (bool, string) {
			text, err := scrape(ctx)
			for _, line := range lines {
				if strings.Count("\n"+text, "\n"+line+"\n") != 1 {
					return false, fmt.Sprintf("%v: not one %q", err, line)
				}
			}
			return true, ""
		})
	}
	has("gpu_dra_webhook_reachable 1", "gpu_dra_cluster_nodes 2", `gpu_dra_cluster_free_gpus{model="NVIDIA L40S"} 4`, `gpu_dra_cluster_free_gpus{model="NVIDIA H100 80GB HBM3"} 8`,
		`gpu_dra_cluster_largest_free_group_gpus{model="NVIDIA H100 80GB HBM3"} 8`, `gpu_dra_cluster_fragmentation_ratio{model="NVIDIA L40S"} 0`)
	startDemo(ctx, t, "mig-one")
	has(`gpu_dra_cluster_free_gpus{model="NVIDIA H100 80GB HBM3"} 7`, `gpu_dra_cluster_claims{phase="reserved"} 1`,
		`gpu_dra_cluster_largest_free_group_gpus{model="NVIDIA H100 80GB HBM3"} 4`)
}

// TestDeviceClasses_MatchNothing_EventSaysSo expects an Event, because a class has no status.
func TestDeviceClasses_MatchNothing_EventSaysSo(t *testing.T) {
	ctx := testContext(t)
	classes := cluster.Client.ResourceV1().DeviceClasses()
	made, err := classes.Create(ctx, &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "b300.example.com"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu" && device.attributes["gpu.nvidia.com"].productName == "NVIDIA B300"`,
		}}},
	}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, classes.Delete(context.WithoutCancel(ctx), made.Name, metav1.DeleteOptions{})) })
	// After a restart of the API server, each watch of a client pauses for up to a minute before it begins again.
	must(t, cluster.Eventually(ctx, "an Event on the class", 3*time.Minute, func(ctx context.Context) (bool, string) {
		events, err := cluster.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + made.Name})
		if err != nil {
			return false, err.Error()
		}
		for _, e := range events.Items {
			if e.Reason == "MatchesNoDevice" {
				return true, ""
			}
		}
		return false, fmt.Sprint(len(events.Items), " Events")
	}))
}

// TestHelm_PodHasGPU_TestPassesAndUninstallRefuses runs both with Helm.
func TestHelm_PodHasGPU_TestPassesAndUninstallRefuses(t *testing.T) {
	ctx := testContext(t)
	helm := func(args ...string) (string, error) {
		return cluster.Run(ctx, filepath.Join(cluster.Tree, "hack", "tool.sh"), append([]string{"helm", "-n", env.Namespace}, args...)...)
	}
	out, err := helm("test", env.Release)
	if err != nil || !strings.Contains(out, "Phase:          Succeeded") {
		t.Errorf("helm test: %v\n%s", err, out)
	}
	startDemo(ctx, t, "one-gpu")
	if out, err := helm("uninstall", env.Release); err == nil || !strings.Contains(out, "demo-one-gpu/") || !strings.Contains(out, "helm uninstall --no-hooks") {
		t.Errorf("uninstalling while a pod has a GPU: %v\n%s", err, out)
	}
	if out, err := helm("status", env.Release); err != nil || !strings.Contains(out, "STATUS: deployed") {
		t.Errorf("an upgrade would find no deployed release: %v\n%s", err, out)
	}
	pods, err := cluster.Client.CoreV1().Pods(env.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	if err != nil || len(pods.Items) < 2 {
		t.Errorf("the driver is gone: %d controllers, %v", len(pods.Items), err)
	}
}
