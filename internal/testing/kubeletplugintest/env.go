// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugintest

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/metrics"
)

// Driver and Node are the names in every Env.
const (
	Driver = "gpu.nvidia.com"
	Node   = "n1"
)

// Env is the environment of one test.
type Env struct {
	*testing.T
	Client *fake.Clientset
	// Faults are faults of the requests of API, which is Client for the plugin.
	Faults  Faults
	Metrics *metrics.Metrics
	// Drop, if set, removes the fields of a ResourceSlice that the API server does not know.
	Drop func(*resourceapi.ResourceSlice)
	// NoDryRuns, if set, is the error of dry runs.
	NoDryRuns error
	// Writes counts the writes of ResourceSlices.
	Writes atomic.Int64

	plugin
}

// New returns an Env whose API server has the Node and the objects.
func New(t *testing.T, objects ...runtime.Object) *Env {
	e := &Env{
		T: t, Metrics: metrics.New(metrics.Options{Driver: Driver, Node: Node}),
		Client: fake.NewClientset(append(objects,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: Node, UID: "node-uid"}})...),
	}
	e.ServerVersion("v1.37.1")
	e.HealthPort = -1
	store := func(s *resourceapi.ResourceSlice) {
		if e.Drop != nil {
			e.Drop(s)
		}
		s.ResourceVersion = fmt.Sprint(10 * e.Writes.Load()) // Between two, tests change slices directly.
	}
	e.Client.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		create := a.(clienttesting.CreateActionImpl)
		s := create.Object.(*resourceapi.ResourceSlice)
		if len(create.CreateOptions.DryRun) > 0 {
			s = s.DeepCopy()
			store(s)
			return true, s, e.NoDryRuns
		}
		e.Writes.Add(1)
		store(s)
		s.Name = s.GenerateName + s.ResourceVersion
		return false, nil, nil
	})
	e.Client.PrependReactor("update", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		s, ok := a.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceSlice)
		if !ok { // After an error, clients try the older versions, which this server does not have.
			return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), "")
		}
		e.Writes.Add(1)
		store(s)
		return false, nil, nil
	})
	return e
}

// API returns the client of the plugin.
func (e *Env) API() kubernetes.Interface { return faultyClient{e.Client, &e.Faults} }

// ServerVersion sets the version of the API server, before the plugin starts.
func (e *Env) ServerVersion(text string) {
	e.Client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: text}
}

// Go runs work until the test ends.
func (e *Env) Go(work func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		work(ctx)
		close(done)
	}()
	e.Cleanup(func() {
		cancel()
		<-done
	})
}

// Eventually polls until ok returns true; the string is the observed state, for the failure message.
func (e *Env) Eventually(what string, ok func() (bool, string)) {
	e.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		done, state := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			e.Fatalf("not within 20 s: %s. Last state: %s", what, state)
		}
	}
}

// Event waits for an Event about an object whose message contains all texts.
func (e *Env) Event(kind, name, reason string, texts ...string) (found *corev1.Event) {
	e.Helper()
	e.Eventually("an Event "+reason+" about "+kind+" "+name, func() (bool, string) {
		list, err := e.Client.CoreV1().Events("").List(e.Context(), metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		var seen []string
		for i, event := range list.Items {
			good := event.InvolvedObject.Kind == kind && event.InvolvedObject.Name == name && event.Reason == reason
			for _, text := range texts {
				good = good && strings.Contains(event.Message, text)
			}
			if good {
				found = &list.Items[i]
			}
			seen = append(seen, event.InvolvedObject.Name+" "+event.Reason+": "+event.Message)
		}
		return found != nil, strings.Join(seen, "\n")
	})
	return found
}

// MetricsText scrapes the metrics.
func (e *Env) MetricsText() string {
	r := httptest.NewRecorder()
	e.Metrics.Handler().ServeHTTP(r, httptest.NewRequestWithContext(context.Background(), "GET", "/metrics", nil))
	return r.Body.String()
}

// Metric waits for a sample, because metrics count after the effects that tests wait for.
func (e *Env) Metric(sample string) {
	e.Helper()
	e.Eventually("metric "+sample, func() (bool, string) {
		text := e.MetricsText()
		return strings.Contains(text, "\n"+sample+"\n"), text
	})
}

// Claim returns a claim with one device, reserved for a pod. It does not add it to the API server.
func Claim(uid, device, parameters string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + uid, UID: types.UID(uid)},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{
				{Resource: "pods", Name: "pod-" + uid, UID: types.UID("p-" + uid)},
				{APIGroup: "batch", Resource: "jobs", Name: "job-" + uid},
			},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{
					Request: "gpu",
					Driver:  Driver,
					Pool:    Node + "/gpu",
					Device:  device,
				}},
			}},
		},
	}
	if parameters != "" {
		c.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		}}
	}
	return c
}

// StoredClaim returns the API server's version of a claim.
func (e *Env) StoredClaim(name string) *resourceapi.ResourceClaim {
	e.Helper()
	c, err := e.Client.ResourceV1().ResourceClaims("ns").Get(e.Context(), name, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return c
}

func (e *Env) Slices() []resourceapi.ResourceSlice {
	e.Helper()
	list, err := e.Client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

// Devices returns the published devices by name.
func (e *Env) Devices() map[string]resourceapi.Device {
	out := map[string]resourceapi.Device{}
	for _, s := range e.Slices() {
		for _, d := range s.Spec.Devices {
			out[d.Name] = d
		}
	}
	return out
}

// Published waits until want devices of a kind are published.
func (e *Env) Published(kind gpu.Kind, want int) {
	e.Helper()
	e.Eventually(fmt.Sprintf("%d devices of kind %s", want, kind), func() (bool, string) {
		n := 0
		for name := range e.Devices() {
			if d, err := gpu.ParseName(name); err == nil && d.Kind == kind {
				n++
			}
		}
		return n == want, fmt.Sprintf("%d are published", n)
	})
}
