// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"gpu-dra-driver/internal/testing/slicetest"
)

// TestSelfTest_WebhookReachableOrNot_EventAndResult puts a firewall between API server and webhook, and removes it.
func TestSelfTest_WebhookReachableOrNot_EventAndResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "webhook"}})
		events, results := record.NewFakeRecorder(100), []bool{}
		test := SelfTest{
			Checks: Checks{Client: e.Client(), Driver: slicetest.Driver, Namespace: "ns", Port: 9443}, Service: "webhook", Events: events,
			Report: func(reachable bool) { results = append(results, reachable) },
		}
		set := func(fault func(request) (error, error)) {
			e.Lock()
			defer e.Unlock()
			e.Fault = fault
		}
		// after returns the Events and results of some time.
		after := func(d time.Duration) (emitted []string, found []bool) {
			time.Sleep(d)
			synctest.Wait()
			for len(events.Events) > 0 {
				emitted = append(emitted, <-events.Events)
			}
			found, results = results, nil
			return emitted, found
		}
		set(failingOn(createClaim, unreached("no endpoints available for service")))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- test.Run(ctx) }()

		if emitted, found := after(30 * time.Second); len(emitted)+len(found) > 0 {
			t.Errorf("before the first pod can be ready: %q, %v", emitted, found)
		}
		set(refusing)
		if emitted, found := after(time.Hour); len(emitted) != 1 || !strings.HasPrefix(emitted[0], "Normal WebhookReachable") || len(found) < 3 || slices.Contains(found, false) {
			t.Errorf("reachable for an hour: %q, %v", emitted, found)
		}
		set(failingOn(createClaim, apierrors.NewInternalError(errors.New("etcd is away"))))
		if emitted, found := after(time.Hour); len(emitted)+len(found) > 0 {
			t.Errorf("no answer about the webhook: %q, %v", emitted, found)
		}
		set(failingOn(createClaim, unreached("context deadline exceeded"+strings.Repeat(" x", 1000))))
		emitted, found := after(2*time.Hour + 2*time.Minute) // Between two tests.
		if len(emitted) < 5 || len(emitted) > 15 || len(found) != len(emitted) || slices.Contains(found, true) {
			t.Errorf("unreachable for two hours: %d Events, %v", len(emitted), found)
		}
		for _, text := range emitted {
			if !strings.HasPrefix(text, "Warning WebhookUnreachable") || !strings.Contains(text, "TCP port 9443") || len(text) > 1024 {
				t.Errorf("%q", text)
			}
		}
		set(refusing)
		if emitted, found := after(16 * time.Minute); len(emitted) != 1 || !slices.Contains(found, true) {
			t.Errorf("reachable again: %q, %v", emitted, found)
		}
		if n := len(e.Names("resourceclaims")); n > 0 {
			t.Errorf("the tests leave %d claims", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
