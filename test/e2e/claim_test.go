//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/test/e2e/env"
)

// createNamespace creates a namespace for a test, which removes it at the end.
func createNamespace(ctx context.Context, t *testing.T, labels map[string]string) string {
	t.Helper()
	made, err := cluster.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: labels},
	}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		must(t, cluster.Client.CoreV1().Namespaces().Delete(ctx, made.Name, metav1.DeleteOptions{}))
		// Kubernetes takes longer to remove the namespace itself, and its name is not reused.
		must(t, cluster.Eventually(ctx, "pods and claims gone", 90*time.Second, func(ctx context.Context) (bool, string) {
			pods, err := cluster.Client.CoreV1().Pods(made.Name).List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err.Error()
			}
			claims, err := cluster.Client.ResourceV1().ResourceClaims(made.Name).List(ctx, metav1.ListOptions{})
			return err == nil && len(pods.Items)+len(claims.Items) == 0, fmt.Sprint(len(pods.Items), err)
		}))
	})
	must(t, cluster.Eventually(ctx, "default service account", 30*time.Second, func(ctx context.Context) (bool, string) {
		_, err := cluster.Client.CoreV1().ServiceAccounts(made.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	}))
	return made.Name
}

// createClaim creates a claim for one GPU, with parameters if given.
func createClaim(ctx context.Context, t *testing.T, namespace, name, parameters string) {
	t.Helper()
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: env.Driver},
		}}}},
	}
	if parameters != "" {
		c.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: env.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
		}}}
	}
	_, err := cluster.Client.ResourceV1().ResourceClaims(namespace).Create(ctx, c, metav1.CreateOptions{})
	must(t, err)
}

// createPod creates a pod that uses a claim.
func createPod(ctx context.Context, t *testing.T, namespace, name, claim string, change func(*corev1.PodSpec)) *corev1.Pod {
	t.Helper()
	image := probeImage(t)
	grace := int64(1)
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{
			Name: "probe", Image: image, ImagePullPolicy: corev1.PullNever, Args: []string{"look", "--hold"},
			Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
		}},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}},
	}
	if change != nil {
		change(&spec)
	}
	p, err := cluster.Client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	must(t, err)
	return p
}

// probeImage returns the image of the demos.
func probeImage(t *testing.T) string {
	t.Helper()
	demos, err := cluster.Demos()
	must(t, err)
	data, err := os.ReadFile(demos[0].Path)
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if _, image, ok := strings.Cut(line, "image: "); ok {
			return strings.Trim(strings.TrimSpace(image), "\"")
		}
	}
	t.Fatalf("no image in %s", demos[0].Path)
	return ""
}

// waitEvent waits for a Warning about an object that contains a text.
func waitEvent(ctx context.Context, t *testing.T, namespace, object string, texts ...string) {
	t.Helper()
	must(t, cluster.Eventually(ctx, "Event on "+object, 60*time.Second, func(ctx context.Context) (bool, string) {
		list, err := cluster.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object + ",type=Warning"})
		if err != nil {
			return false, err.Error()
		}
		var seen []string
		for _, e := range list.Items {
			missing := slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Message, text) })
			if !missing {
				return true, ""
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return false, strings.Join(seen, "\n")
	}))
}

// withoutWebhook calls do while the webhook is disabled, as in a cluster without the webhook.
func withoutWebhook(ctx context.Context, t *testing.T, do func()) {
	t.Helper()
	hooks := cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	hook, err := hooks.Get(ctx, env.Release+"-webhook", metav1.GetOptions{})
	must(t, err)
	must(t, hooks.Delete(ctx, hook.Name, metav1.DeleteOptions{}))
	hook.ResourceVersion, hook.UID = "", ""
	defer func() {
		_, err := hooks.Create(context.WithoutCancel(ctx), hook, metav1.CreateOptions{})
		must(t, err)
	}()
	wrong := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: env.Driver}}},
		Config: []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: env.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{}`)}},
		}}},
	}}}
	must(t, cluster.Eventually(ctx, "the webhook out of the way", 30*time.Second, func(ctx context.Context) (bool, string) {
		_, err := cluster.Client.ResourceV1().ResourceClaims("default").Create(ctx, wrong, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil, fmt.Sprint(err)
	}))
	do()
}

func TestParameters_UnknownField_EventNamesIt(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	withoutWebhook(ctx, t, func() {
		createClaim(ctx, t, ns, "typo", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharring":{}}`)
	})
	createPod(ctx, t, ns, "typo-pod", "typo", nil)
	waitEvent(ctx, t, ns, "typo", "sharring", "create the claim anew")
	waitEvent(ctx, t, ns, "typo-pod", "InvalidParameters: prepare failed for", "sharring") // From the kubelet.
	list, err := cluster.Client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
	must(t, err)
	told := map[string]int{}
	for _, e := range list.Items {
		if strings.Contains(e.Message, "sharring") {
			told[e.InvolvedObject.Kind]++
		}
	}
	if told["Pod"] != 1 || told["ResourceClaim"] != 1 {
		t.Errorf("Events by object: %v, want one on the pod and one on the claim", told)
	}
	// After the deletion of the pod, the GPU is not in use.
	must(t, cluster.Client.CoreV1().Pods(ns).Delete(ctx, "typo-pod", metav1.DeleteOptions{}))
	must(t, cluster.Eventually(ctx, "the pod gone", 60*time.Second, func(ctx context.Context) (bool, string) {
		_, err := cluster.Client.CoreV1().Pods(ns).Get(ctx, "typo-pod", metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	}))
}

func TestClaimStatus_Prepared_NamesDevices(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	createClaim(ctx, t, ns, "one", "")
	createPod(ctx, t, ns, "p", "one", nil)
	pods, err := cluster.WaitPods(ctx, ns, 1)
	must(t, err)
	checkPod(ctx, t, pods[0])
	must(t, cluster.Eventually(ctx, "status.devices", 30*time.Second, func(ctx context.Context) (bool, string) {
		c, err := cluster.Client.ResourceV1().ResourceClaims(ns).Get(ctx, "one", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		if len(c.Status.Devices) != 1 || c.Status.Devices[0].Data == nil {
			return false, fmt.Sprintf("%+v", c.Status.Devices)
		}
		var data struct {
			UUID       string `json:"uuid"`
			PCIAddress string `json:"pciAddress"`
		}
		if err := json.Unmarshal(c.Status.Devices[0].Data.Raw, &data); err != nil {
			return false, err.Error()
		}
		_, uuid := minorAndUUID(t, c.Status.Devices[0].Device)
		conditions := c.Status.Devices[0].Conditions
		return data.UUID == uuid && data.PCIAddress != "" && len(conditions) > 0 && conditions[0].Status == metav1.ConditionTrue,
			fmt.Sprintf("%+v, want UUID %s", c.Status.Devices[0], uuid)
	}))
}

func TestContainer_LockedDown_HasItsGPU(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	createClaim(ctx, t, ns, "one", "")
	yes, no, user := true, false, int64(1000)
	createPod(ctx, t, ns, "locked", "one", func(spec *corev1.PodSpec) {
		spec.Containers[0].SecurityContext = &corev1.SecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	})
	pods, err := cluster.WaitPods(ctx, ns, 1)
	must(t, err)
	checkPod(ctx, t, pods[0])
	view, err := cluster.Inspect(ctx, ns, "locked", "probe")
	must(t, err)
	if view.UID != 1000 {
		t.Errorf("the container runs as %d", view.UID)
	}
}

func TestContainer_WithoutClaim_SeesNoGPU(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	createClaim(ctx, t, ns, "one", "")
	createPod(ctx, t, ns, "p", "one", func(spec *corev1.PodSpec) {
		other := *spec.Containers[0].DeepCopy()
		other.Name, other.Resources = "without", corev1.ResourceRequirements{}
		spec.Containers = append(spec.Containers, other)
	})
	pods, err := cluster.WaitPods(ctx, ns, 1)
	must(t, err)
	checkPod(ctx, t, pods[0])
}

// TestContainer_ImplicitExtendedResource_HasItsGPU has the name that Kubernetes itself gives to each DeviceClass.
func TestContainer_ImplicitExtendedResource_HasItsGPU(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	createPod(ctx, t, ns, "p", "", func(spec *corev1.PodSpec) {
		spec.ResourceClaims = nil
		spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"deviceclass.resource.kubernetes.io/" + env.Driver: resource.MustParse("1"),
		}}
	})
	pods, err := cluster.WaitPods(ctx, ns, 1)
	must(t, err)
	checkPod(ctx, t, pods[0])
	checkDevices(1)(ctx, t, pods)
}

func TestPod_ForceDeletedAndCreatedAgain_HasGPU(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	zero := int64(0)
	for range 2 {
		createClaim(ctx, t, ns, "again", "")
		createPod(ctx, t, ns, "p", "again", nil)
		pods, err := cluster.WaitPods(ctx, ns, 1)
		must(t, err)
		checkPod(ctx, t, pods[0])
		must(t, cluster.Client.CoreV1().Pods(ns).Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
		must(t, cluster.Client.ResourceV1().ResourceClaims(ns).Delete(ctx, "again", metav1.DeleteOptions{}))
		must(t, cluster.Eventually(ctx, "the claim gone", 60*time.Second, func(ctx context.Context) (bool, string) {
			_, err := cluster.Client.ResourceV1().ResourceClaims(ns).Get(ctx, "again", metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		}))
	}
	must(t, cluster.Eventually(ctx, "no CDI spec left", 60*time.Second, func(ctx context.Context) (bool, string) {
		left := cdiSpecs(ctx, t)
		return len(left) == 0, strings.Join(left, " ")
	}))
}

func TestPod_GPUOfForceDeletedPod_IsWaitedFor(t *testing.T) {
	ctx := testContext(t)
	ns := createNamespace(ctx, t, nil)
	zero := int64(0)
	for _, name := range []string{"old", "new"} {
		createClaim(ctx, t, ns, name, "") // The scheduler gives both the first GPU.
		createPod(ctx, t, ns, name, name, func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = new(int64(3)) })
		// The kubelet's second attempt to prepare a claim comes after more than a minute.
		must(t, cluster.Eventually(ctx, "pod "+name+" running", 40*time.Second, func(ctx context.Context) (bool, string) {
			p, err := cluster.Client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
			return err == nil && p.Status.Phase == corev1.PodRunning, fmt.Sprint(err, p.Status.Phase)
		}))
		if name == "old" {
			must(t, cluster.Client.CoreV1().Pods(ns).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &zero}))
		}
	}
}

// inventedSlice returns a slice of a node with a device of no known type.
func inventedSlice(node string) *resourceapi.ResourceSlice {
	return slicetest.Monitor(node, node+"/e2e")
}

// removeNewClasses has the DeviceClasses removed at the end of the test that the controller makes during it, for models that a
// slice of the test invents. The controller itself keeps them for deviceClasses.grace.
func removeNewClasses(ctx context.Context, t *testing.T) {
	t.Helper()
	classes := func(ctx context.Context) map[string]bool {
		list, err := cluster.Client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
		must(t, err)
		names := map[string]bool{}
		for _, c := range list.Items {
			names[c.Name] = true
		}
		return names
	}
	before := classes(ctx)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		for name := range classes(ctx) {
			if !before[name] {
				must(t, cluster.Client.ResourceV1().DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{}))
			}
		}
	})
}

// TestSlices_WithPluginsToken_ValuesThatStopTheSchedulerDenied writes, with the token of a plugin's pod, slices of the pod's
// own node with each kind of each attribute and each range of each amount.
func TestSlices_WithPluginsToken_ValuesThatStopTheSchedulerDenied(t *testing.T) {
	ctx := testContext(t)
	removeNewClasses(ctx, t)
	p := pluginPods(ctx, t, 1)[0]
	token, err := cluster.Client.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}},
	}, metav1.CreateOptions{})
	must(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(t, err)
	config = rest.AnonymousClientConfig(config)
	config.BearerToken, config.QPS = token.Status.Token, -1
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	all, err := slicetest.Node("hgx-h100", p.Spec.NodeName, 2)
	must(t, err)
	all, _ = slicetest.Few(all)
	text := func(spec resourceapi.ResourceSliceSpec) string {
		data, err := json.Marshal(spec)
		must(t, err)
		return string(data)
	}
	// create returns a slice as the server stores it, and deletes it. The server drops fields of features that are off, and
	// writes when it first saw a taint.
	create := func(s *resourceapi.ResourceSlice) (string, error) {
		made, err := client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		// The plugin deletes it too.
		if err := client.ResourceV1().ResourceSlices().Delete(context.WithoutCancel(ctx), made.Name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			must(t, err)
		}
		for i := range made.Spec.Devices {
			for k := range made.Spec.Devices[i].Taints {
				made.Spec.Devices[i].Taints[k].TimeAdded = nil
			}
		}
		return text(made.Spec), nil
	}
	server, err := client.Discovery().ServerVersion()
	must(t, err)
	minor, err := strconv.Atoi(strings.TrimSuffix(server.Minor, "+"))
	must(t, err)
	dividesByStep := minor < 37 // Its validation does.
	policies := func(spec string) int { return strings.Count(spec, `"requestPolicy"`) }
	unchanged := map[*resourceapi.ResourceSlice]string{}
	tried, policyDenied := 0, 0
	// The test of the policy itself has all amounts. An API server compares 1e999999999 with the bounds of a request for ever,
	// before it asks the policy.
	few := map[string]bool{"0": true, "81559Mi": true, "-1": true, "500m": true, "2P": true, "9223372036854775807": true, "1e3": true}
	for _, c := range slicetest.Changes() {
		words := strings.Fields(c.Name)
		last := words[len(words)-1]
		if _, err := resource.ParseQuantity(last); err == nil && !few[last] && !strings.HasSuffix(c.Name, "without policy 1e999999999") {
			continue
		}
		tried++
		var created, denied []string
		for _, s := range all {
			if c.Denied && len(denied) > 0 {
				break
			}
			base := s.DeepCopy()
			base.Name, base.GenerateName, base.Spec.Pool.Name = "", "e2e-", p.Spec.NodeName+"/e2e"
			changed := base.DeepCopy()
			c.Do(changed)
			// Not by equality.Semantic: a comparison with the amount 1e999999999 does not end.
			if reflect.DeepEqual(base.Spec, changed.Spec) {
				continue
			}
			if unchanged[s] == "" {
				unchanged[s], err = create(base)
				must(t, err)
			}
			stored, err := create(changed)
			switch {
			case err == nil && policies(text(changed.Spec)) > policies(text(base.Spec)) && policies(stored) == 0:
				// A server without shared devices drops policies of requests.
			case err == nil && stored != unchanged[s]:
				created = append(created, base.Spec.Pool.Name)
			case err == nil:
			case apierrors.IsForbidden(err):
				denied = append(denied, err.Error())
			case dividesByStep && strings.HasSuffix(c.Name, " step 0") && strings.Contains(err.Error(), "INTERNAL_ERROR; received from peer"):
				// The server ends the request, and stores nothing.
			case !apierrors.IsInvalid(err):
				t.Errorf("%s: %v", c.Name, err)
			}
		}
		policyDenied += min(1, len(denied))
		if c.Denied && len(created) > 0 && len(denied) == 0 || !c.Denied && len(denied) > 0 {
			t.Errorf("%s: %d slices were created, and the policy denied %q, want denied %v", c.Name, len(created), denied, c.Denied)
		}
	}
	if policyDenied < tried/4 {
		t.Errorf("the policy denied %d of %d slices; the API server itself refused too many for this test", policyDenied, tried)
	}
	runDemo(ctx, t, "one-gpu")
}

func TestSlices_OfOthers_PluginCannotWrite(t *testing.T) {
	ctx := testContext(t)
	p := pluginPods(ctx, t, 1)[0]
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	must(t, err)
	as := func(node string) kubernetes.Interface {
		c := rest.CopyConfig(config)
		c.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + env.Namespace + ":" + p.Spec.ServiceAccountName,
			Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + env.Namespace, "system:authenticated"},
			Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {node}},
		}
		client, err := kubernetes.NewForConfig(c)
		must(t, err)
		return client
	}
	own, slice := p.Spec.NodeName, inventedSlice
	made, err := as(own).ResourceV1().ResourceSlices().Create(ctx, slice(own), metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		_ = cluster.Client.ResourceV1().ResourceSlices().Delete(context.WithoutCancel(ctx), made.Name, metav1.DeleteOptions{})
	})
	denied := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s was not denied: %v", what, err)
		}
	}
	_, err = as(own).ResourceV1().ResourceSlices().Create(ctx, slice("other-node"), metav1.CreateOptions{})
	denied("a slice for another node", err)
	without := slice(own)
	without.Spec.Devices[0].Attributes = nil
	_, err = as(own).ResourceV1().ResourceSlices().Create(ctx, without, metav1.CreateOptions{})
	denied("a device without its type", err)
	err = as("other-node").ResourceV1().ResourceSlices().Delete(ctx, made.Name, metav1.DeleteOptions{})
	denied("deleting another node's slice", err)

	pod := runDemo(ctx, t, "one-gpu")[0]
	claims, err := cluster.Client.ResourceV1().ResourceClaims(pod.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	claim := &claims.Items[0]
	claim.ResourceVersion = "" // The plugin may write the status at the same time.
	claim.Status.Devices = nil
	_, err = as("other-node").ResourceV1().ResourceClaims(pod.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	denied("the status of another node's claim", err)
	claim.Status.ReservedFor = nil
	_, err = as(own).ResourceV1().ResourceClaims(pod.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	denied("the consumers of a claim", err)
}

func TestMetrics_PodServed_AllSeriesPresent(t *testing.T) {
	ctx := testContext(t)
	pods := runDemo(ctx, t, "one-gpu")
	p := pluginPods(ctx, t, 1)[0]
	text, err := cluster.Client.CoreV1().RESTClient().Get().Namespace(p.Namespace).Resource("pods").
		Name(p.Name + ":8080").SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	must(t, err)
	for _, want := range []string{
		"nvidia_dra_requests_total{", "nvidia_dra_request_duration_seconds_bucket{", "nvidia_dra_requests_inflight",
		"nvidia_dra_prepared_devices{", "gpu_dra_published_devices{",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in /metrics", want)
		}
	}
	for _, user := range pods {
		sample := fmt.Sprintf(`gpu_dra_claim_device_info{claim=%q,claim_namespace=%q,`, *user.Status.ResourceClaimStatuses[0].ResourceClaimName, user.Namespace)
		of := fmt.Sprintf(`container=%q`, user.Spec.Containers[0].Name)
		pod := fmt.Sprintf(`pod=%q`, user.Name)
		if !slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			return strings.HasPrefix(line, sample) && strings.Contains(line, of) && strings.Contains(line, pod)
		}) {
			t.Errorf("no sample %s with %s and %s", sample, of, pod)
		}
	}
}
