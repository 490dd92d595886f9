// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package enforcement

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/metrics"
)

// reviewsOf returns reviews of each kind and operation in a namespace, as bodies.
func reviewsOf(t *testing.T, namespace string) map[string]string {
	t.Helper()
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "forged"}}
	template.Spec.Spec = newClaim("", "", h100Class, 3).Spec
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "forged"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimTemplateName: new("three")}}
	out := map[string]string{"nothing": "", "no JSON": "{", "no request": `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`}
	for kind, r := range map[string]*admissionv1.AdmissionRequest{
		"claim": creation(t, "resourceclaims", "ResourceClaim", newClaim(namespace, "forged", h100Class, 1)), "template": creation(t, "resourceclaimtemplates", "ResourceClaimTemplate", template),
		"pod": creation(t, "pods", "Pod", pod),
	} {
		for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update, admissionv1.Delete, admissionv1.Connect} {
			for _, dry := range []bool{false, true} {
				r.Operation, r.DryRun = operation, new(dry)
				body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: r})
				if err != nil {
					t.Fatal(err)
				}
				out[fmt.Sprintf("%s of a %s, dry run %v", operation, kind, dry)] = string(body)
			}
		}
	}
	return out
}

// allOf is all that reviews of budgets could change or read.
func (e *env) allOf(b *Budgets) []string {
	e.Lock()
	defer e.Unlock()
	var out []string
	for _, resource := range slices.Sorted(maps.Keys(e.Objects)) {
		for _, name := range slices.Sorted(maps.Keys(e.Objects[resource])) {
			out = append(out, fmt.Sprintf("%s %s of version %s", resource, name, e.Objects[resource][name].GetResourceVersion()))
		}
	}
	out = append(out, e.Writes...)
	out = append(out, e.Reads...)
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(out, fmt.Sprintf("%d queues", len(b.queues)))
}

// send posts a body to the webhook.
func send(h http.Handler, method, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	return answer
}

// serverOf returns the paths of an instance as its server has them.
func serverOf(b *Budgets) http.Handler {
	mux := http.NewServeMux()
	m := metrics.NewReviews(prometheus.NewRegistry(), "v")
	for _, handlers := range []map[string]http.Handler{controller.Webhooks(b.view, m, false), b.Webhooks(m)} {
		for path, h := range handlers {
			mux.Handle(path, h)
		}
	}
	if b.path != nil {
		return b.path.Watch(mux)
	}
	return mux
}

// TestWebhooks_ForgedReview_ChangesNothing sends all kinds of requests to all paths, as any pod can that reaches the webhook.
func TestWebhooks_ForgedReview_ChangesNothing(t *testing.T) {
	for name, certificates := range map[string]bool{"a secret path": false, "client certificates": true} {
		t.Run(name, func(t *testing.T) {
			withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
				e.PutBudget("team-a", "2")
				template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "three"}}
				template.Spec.Spec = newClaim("", "", h100Class, 3).Spec
				e.Put(template)
				paths := []string{
					controller.AdmitPath, controller.AdvisePath, Path, Path + "/", Path + "/x", Path + "/" + strings.Repeat("0", 2*pathBytes), "/", "/convert",
					"/metrics", "/healthz", "/debug/pprof/",
				}
				if !certificates {
					e.Put(chartConfig(nil))
					instances[1].path = e.startReviewPath(t)
					pass(time.Second)
					paths = append(paths, e.reviewPath(t))
					instances[1].path.Renew()
					pass(announceFor + acceptFor + renewPause)
					now := e.reviewPath(t)
					if slices.Contains(paths, now) {
						t.Fatal("the path was not renewed")
					}
					paths = append(paths, now[:len(now)-1], now+"0", now+"/", strings.ToUpper(now), Path+now, "/"+now[len(Path)+1:], controller.AdmitPath+now[len(Path):])
				}
				pass(time.Second)
				server := serverOf(instances[1])
				before, reviews := e.allOf(instances[1]), reviewsOf(t, "team-a")
				for _, path := range paths {
					for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodPut} {
						for name, body := range reviews {
							answer := send(server, method, path, body)
							synctest.Wait()
							if after := e.allOf(instances[1]); !slices.Equal(before, after) {
								t.Fatalf("%s %s: %s: (-before +after)\n%s", method, path, name, cmp.Diff(before, after))
							}
							if text := answer.Body.String(); strings.Contains(text, "of 2") || strings.HasPrefix(path, Path) && answer.Code < 300 {
								t.Fatalf("%s %s: %s: the answer is %d: %s", method, path, name, answer.Code, text)
							}
						}
					}
				}
				if b := e.budget("team-a"); used(b) != "0" || len(b.Status.Reservations) > 0 {
					t.Errorf("forged reviews reserve: %s used, reservations %v", used(b), b.Status.Reservations)
				}
			})
		})
	}
}

// TestWebhooks_APIServersReview_Reserves has the review of an API server, by its path and by its certificate.
func TestWebhooks_APIServersReview_Reserves(t *testing.T) {
	withBudgets(t, func(t *testing.T, e *env, instances []*Budgets) {
		e.PutBudget("team-a", "2")
		e.Put(chartConfig(nil))
		instances[0].path = e.startReviewPath(t)
		pass(time.Second)
		body := reviewsOf(t, "team-a")["CREATE of a claim, dry run false"]
		if answer := send(serverOf(instances[0]), http.MethodPost, e.reviewPath(t)+"?timeout=5s", body); answer.Code != http.StatusOK || used(e.budget("team-a")) != "1" {
			t.Errorf("%d: %s, %s used", answer.Code, answer.Body, used(e.budget("team-a")))
		}
		for _, path := range []string{Path, e.reviewPath(t)} { // The second one is from a time without a client authority.
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(strings.ReplaceAll(body, "forged", "second")))
			r.Header.Set("Content-Type", "application/json")
			r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{}}}
			answer := httptest.NewRecorder()
			serverOf(instances[1]).ServeHTTP(answer, r)
			if answer.Code != http.StatusOK || used(e.budget("team-a")) != "2" {
				t.Errorf("%s: %d: %s, %s used", path, answer.Code, answer.Body, used(e.budget("team-a")))
			}
		}
	})
}

// TestController_OtherPorts_ChangeNothing reads the metrics and the state, as any pod can.
func TestController_OtherPorts_ChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, machine(t, "hgx-h100", "n1", 0)...)
		k, stop := e.start(true, nil)
		defer stop()
		e.PutBudget("team-a", "2")
		pass(time.Minute)
		registry := prometheus.NewRegistry()
		registry.MustRegister(metrics.Clusters(k.cluster.Cluster), metrics.Budgets(k.Metrics))
		path := NewReviewPath(e.Client(), slicetest.Driver, "config")
		before := e.allOf(k.Budgets)
		for range 10 {
			if _, err := registry.Gather(); err != nil {
				t.Error(err)
			}
			if err := errors.Join(k.cluster.Synced(), path.Synced()); err == nil {
				t.Error("a path that was not read is ready")
			}
		}
		pass(time.Second)
		if diff := cmp.Diff(before, e.allOf(k.Budgets)); diff != "" {
			t.Errorf("(-before +after)\n%s", diff)
		}
	})
}
