// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"gpu-dra-driver/pkg/metrics"
)

// bench is what the parts of a plugin are tried on one by one.
type bench struct {
	*testing.T
	client  *fake.Clientset
	metrics *metrics.Metrics
	events  *events
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	b := &bench{T: t, client: fake.NewClientset(objects...), metrics: metrics.New(metrics.Options{Driver: "gpu.nvidia.com", Node: "n1"})}
	b.events = newEvents(b.client, b.client.ResourceV1(), "n1", "gpu.nvidia.com", b.metrics)
	t.Cleanup(b.events.broadcaster.Shutdown)
	return b
}

// until polls, for what is done in the background has no end to wait for.
func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("not within 20 s: %s", what)
		}
	}
}

// event waits for an Event on an object.
func (b *bench) event(kind, name, reason string) *corev1.Event {
	b.Helper()
	var found *corev1.Event
	b.until("an Event "+reason+" on "+kind+" "+name, func() bool {
		list, err := b.client.CoreV1().Events("").List(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		for i, e := range list.Items {
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason {
				found = &list.Items[i]
			}
		}
		return found != nil
	})
	return found
}

// counted waits until the metrics have the sample: what is counted is counted after what was waited for before.
func (b *bench) counted(sample string) {
	b.Helper()
	b.until("counted: "+sample, func() bool {
		r := httptest.NewRecorder()
		b.metrics.Handler().ServeHTTP(r, httptest.NewRequest("GET", "/metrics", nil))
		return strings.Contains(r.Body.String(), "\n"+sample+"\n")
	})
}
