// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiversion "k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/api/budget/v1alpha1"
	"gpu-dra-driver/internal/testing/apiservertest"
	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/budget/enforcement"
	"gpu-dra-driver/pkg/wire/demand"
)

// cluster is an API server with a node of GPUs, and the program.
type cluster struct {
	*testing.T
	client *fake.Clientset
	server *apiservertest.Server
	// device is a published GPU.
	device string
	log    logBuffer
}

// logBuffer is the program's log.
type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *logBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(data)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// eventually waits for an effect; the string is the present state.
func (c *cluster) eventually(what string, ok func() (bool, string)) {
	c.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("not within 20 s: %s. Last state: %s", what, state)
		}
	}
}

const driver = slicetest.Driver

// waiting returns a pod that waits for all GPUs of the node, and a claim of another namespace that has one.
func waiting(device string) []runtime.Object {
	claim := func(namespace, name string, count int64) *resourceapi.ResourceClaim {
		return &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
			}}}},
		}
	}
	holder := claim("other", "holder", 1)
	holder.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driver, Pool: "n1/gpu", Device: device}},
	}}
	holder.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "user", UID: "user"}}
	return []runtime.Object{holder, claim("waiters", "all", 8), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "waiters", Name: "p", UID: "p", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
		Spec:       corev1.PodSpec{SchedulerName: "default-scheduler", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: new("all")}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 cannot allocate all claims.",
		}}},
	}}
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{T: t}
	config := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "config"}}
	for _, name := range []string{"parameters", "budget", "budget-pods"} {
		w := admissionv1.ValidatingWebhook{Name: name + "." + driver}
		w.ClientConfig.Service = &admissionv1.ServiceReference{Namespace: "ns", Name: "webhook"}
		config.Webhooks = append(config.Webhooks, w)
	}
	objects := []runtime.Object{
		config, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "ns-uid"}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "webhook", UID: "service-uid"}},
	}
	published, err := slicetest.Node("hgx-h100", "n1", 0)
	c.must(err)
	for _, s := range published {
		objects = append(objects, s)
		for _, d := range s.Spec.Devices {
			if strings.HasPrefix(d.Name, "gpu-") && !strings.Contains(d.Name, "mig") {
				c.device = d.Name
			}
		}
	}
	c.client = fake.NewClientset(objects...)
	c.client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &apiversion.Info{GitVersion: "v1.37.1"}
	c.client.PrependReactor("create", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		dry := len(a.(clienttesting.CreateActionImpl).CreateOptions.DryRun) > 0
		return dry, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceClaim"}, "check", field.ErrorList{field.Required(field.NewPath("opaque.parameters"), "")})
	})
	budget := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"hard": map[string]any{"gpus": "1"}}}}
	budget.SetGroupVersionKind(schema.GroupVersionKind{Group: driver, Version: v1alpha1.Version, Kind: v1alpha1.Kind})
	budget.SetNamespace("team")
	budget.SetName(v1alpha1.Name)
	budget.SetGeneration(1)
	c.server = apiservertest.Serve(t, c.client, map[schema.GroupVersionResource]string{v1alpha1.GroupVersionResource(driver): v1alpha1.Kind}, budget)
	return c
}

// start runs the program until the test ends.
func (c *cluster) start(args ...string) {
	c.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, append(args, "--kubeconfig="+c.server.Kubeconfig), nil, io.Discard, &c.log) }()
	c.Cleanup(func() {
		cancel()
		if code := <-ended; code != 0 {
			c.Errorf("exit code %d: %s", code, &c.log)
		}
		lease, err := c.client.CoordinationV1().Leases("ns").Get(context.Background(), "my-lease", metav1.GetOptions{})
		if err != nil || *lease.Spec.HolderIdentity != "" {
			c.Errorf("the lease is still held: %v, %v", lease, err)
		}
	})
}

// get gets a URL.
func get(url string) (code int, body string) {
	response, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, fmt.Sprint(string(data), err)
}

// answers waits for a URL's answer that contains the text.
func (c *cluster) answers(what, url, text string) {
	c.Helper()
	c.eventually(what, func() (bool, string) {
		code, body := get(url)
		return code == http.StatusOK && strings.Contains(body, text), fmt.Sprint(code, " ", body)
	})
}

// claimReview is a review of the creation of a claim in the namespace with a budget.
func claimReview(count int64) []byte {
	claim, _ := json.Marshal(&resourceapi.ResourceClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}, ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
		}}}},
	})
	text, _ := json.Marshal(&admissionreview.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionreview.AdmissionRequest{
			UID: "u", Operation: admissionreview.Create, Namespace: "team", Name: "c", Object: runtime.RawExtension{Raw: claim},
			Kind:     metav1.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceClaim"},
			Resource: metav1.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: "resourceclaims"},
		},
	})
	return text
}

// asks reports whether the program has read or written a resource.
func (c *cluster) asks(verb, resource, namespace string) (bool, string) {
	for _, a := range c.client.Actions() {
		if a.GetVerb() == verb && a.GetResource().Resource == resource && a.GetNamespace() == namespace {
			return true, ""
		}
	}
	return false, "no request to " + verb + " " + resource
}

// TestRun_EachPart_HasItsEffect runs the program with all its parts over an API server in memory, and looks for an effect of each
// part and of each option. A part that is not started, or gets the value of another one, costs an effect here.
func TestRun_EachPart_HasItsEffect(t *testing.T) {
	c := newCluster(t)
	metrics, health, profiles, webhook := apiservertest.FreePort(t), apiservertest.FreePort(t), apiservertest.FreePort(t), apiservertest.FreePort(t)
	c.start(
		"--pod-namespace=ns", "--lease-name=my-lease", "--http-endpoint=127.0.0.1:"+metrics, "--health-endpoint=127.0.0.1:"+health, "--pprof-endpoint=127.0.0.1:"+profiles,
		"--webhook-port="+webhook, "--webhook-service=webhook", "--webhook-configuration=config", "--cert-secret=cert", "--deny-unsatisfiable", "--budgets",
		"--gpu-class", "--gpu-resource-name=example.com/gpu", "--model-class-prefix=model-", "--extended-resource-prefix=example.com/mig-",
		"--pod-events-name-others", "--preemption", "--demand-configmap=demand", "--auto-kinds=monitor", "--shares-on-demand", "--gpu-prices=NVIDIA H100 80GB HBM3=2.5", "--v=4",
	)

	// The leader.
	c.eventually("the lease is held", func() (bool, string) {
		lease, err := c.client.CoordinationV1().Leases("ns").Get(t.Context(), "my-lease", metav1.GetOptions{})
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "", fmt.Sprint(lease, err)
	})
	if !c.server.Knows("dra-controller/" + version) {
		t.Error("the requests do not name the program")
	}
	c.eventually("the classes are created", func() (bool, string) {
		list, err := c.client.ResourceV1().DeviceClasses().List(t.Context(), metav1.ListOptions{})
		c.must(err)
		var found []string
		for _, class := range list.Items {
			name := class.Name
			if r := class.Spec.ExtendedResourceName; r != nil {
				name += " " + *r
			}
			found = append(found, name)
		}
		for _, want := range []string{driver + " example.com/gpu", "model-nvidia-h100-80gb-hbm3." + driver, "mig-1g.10gb.nvidia.com example.com/mig-1g.10gb", "nvlink-4." + driver} {
			if !slices.Contains(found, want) {
				return false, fmt.Sprintf("no %s among %q", want, found)
			}
		}
		return true, ""
	})
	c.eventually("the node is labelled", func() (bool, string) {
		node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		c.must(err)
		return node.Labels["nvidia.com/gpu.count"] == "8", fmt.Sprint(node.Labels)
	})
	c.eventually("the ConfigMap with the demand is written", func() (bool, string) {
		found, err := c.client.CoreV1().ConfigMaps("ns").Get(t.Context(), "demand", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		state, err := demand.Decode(found.Data)
		_, shares := state.Since[demand.Shares]
		return err == nil && !shares, fmt.Sprint(found.Data, err)
	})
	for _, o := range waiting(c.device) { // The classes are there.
		c.must(c.client.Tracker().Add(o))
	}
	c.eventually("the waiting pod has an Event, with the claim of another namespace", func() (bool, string) {
		list, err := c.client.CoreV1().Events("waiters").List(t.Context(), metav1.ListOptions{})
		c.must(err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "p" && strings.Contains(e.Message, "other/holder")
		}), fmt.Sprint(list.Items)
	})
	c.eventually("the keeper of preemptions runs", func() (bool, string) { return c.asks("watch", "poddisruptionbudgets", "") })
	c.eventually("the budget is counted", func() (bool, string) {
		b, err := c.server.Custom().Resource(v1alpha1.GroupVersionResource(driver)).Namespace("team").Get(t.Context(), v1alpha1.Name, metav1.GetOptions{})
		c.must(err)
		_, counted, _ := unstructured.NestedMap(b.Object, "status", "hard")
		return counted, fmt.Sprint(b.Object)
	})

	// The servers.
	at := "http://127.0.0.1:"
	c.answers("the cluster is counted", at+metrics+"/metrics", "\ngpu_dra_cluster_nodes 1\n")
	c.answers("prices", at+metrics+"/metrics", "\ngpu_dra_gpu_hourly_cost{model=\"NVIDIA H100 80GB HBM3\"} 2.5\n")
	c.answers("version", at+metrics+"/metrics", `,version="unknown"} 1`)
	c.answers("health", at+health+"/healthz", "ok")
	for _, check := range []string{"", "/cluster", "/webhook", "/path"} {
		c.answers("readiness "+check, at+health+"/readyz"+check, "ok")
	}
	c.answers("profiles", at+profiles+"/debug/pprof/cmdline", "test")

	// The webhook.
	if _, err := c.client.CoreV1().Secrets("ns").Get(t.Context(), "cert", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	path := ""
	c.eventually("API servers know the webhook's authority and the path of budgets", func() (bool, string) {
		config, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "config", metav1.GetOptions{})
		c.must(err)
		all := true
		for _, w := range config.Webhooks {
			all = all && len(w.ClientConfig.CABundle) > 0
			if p := w.ClientConfig.Service.Path; w.Name == "budget."+driver && p != nil {
				path = *p
			}
		}
		return all && path != "", fmt.Sprint(config.Webhooks)
	})
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	post := func(ctx context.Context, path string, body []byte) string {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://127.0.0.1:"+webhook+path, bytes.NewReader(body))
		c.must(err)
		request.Header.Set("Content-Type", "application/json")
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return fmt.Sprint(string(text), err)
	}
	c.eventually("a claim that no node can satisfy is denied", func() (bool, string) {
		answer := post(t.Context(), "/admit", claimReview(9))
		return strings.Contains(answer, `"allowed":false`), answer
	})
	if answer := post(t.Context(), "/budget", claimReview(1)); !strings.Contains(answer, enforcement.NotTheAPIServer) {
		t.Errorf("a guessed path of budgets is answered with %s", answer)
	}
	c.eventually("a claim above the budget is denied", func() (bool, string) {
		answer := post(t.Context(), path, claimReview(2))
		return strings.Contains(answer, `"allowed":false`) && strings.Contains(answer, "team"), answer
	})
	c.answers("reviews are counted", at+metrics+"/metrics", `gpu_dra_reviews_total{kind="ResourceClaim",result="denied",webhook="admit"}`)
	// The API server gives up while the controller reads the budget.
	held := c.server.Hold(func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/team/gpubudgets/default") })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-held
		cancel()
	}()
	unanswered := post(ctx, path, claimReview(1))
	c.server.Release()
	c.eventually("the path is renewed after a review without an answer", func() (bool, string) {
		return strings.Contains(c.log.String(), "may have had no answer"), unanswered
	})

	// The API server refuses the claim of the test as the webhook does.
	c.eventually("the test of the webhook is reported", func() (bool, string) {
		list, err := c.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		c.must(err)
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "WebhookReachable" && e.InvolvedObject.Name == "webhook" && e.InvolvedObject.UID == "service-uid" && e.Source.Component == "dra-controller"
		}), fmt.Sprint(list.Items)
	})
	c.answers("the test's result", at+metrics+"/metrics", "\ngpu_dra_webhook_reachable 1\n")
}
