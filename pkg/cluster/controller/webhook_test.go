// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/metrics"
	"gpu-dra-driver/pkg/cluster/pool"
)

// fixed is a view that does not change.
type fixed struct{ of *admission.ClusterView }

// ClusterView implements viewer.
func (f fixed) ClusterView() *admission.ClusterView { return f.of }

// emptyView returns a cluster with one class and no devices.
func emptyView() fixed { return fixed{viewOf()} }

// viewOf returns a cluster with one class.
func viewOf(pools ...pool.Pool) *admission.ClusterView {
	classes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	_ = classes.Add(class("gpu.nvidia.com", `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`))
	return admission.NewClusterView("gpu.nvidia.com", ask.Asker{Evaluator: ask.NewEvaluator(), Classes: resourcelisters.NewDeviceClassLister(classes)}, pools)
}

// brokenLister simulates a bug: it panics.
type brokenLister struct {
	resourcelisters.DeviceClassLister
}

func (brokenLister) Get(string) (*resourceapi.DeviceClass, error) { panic("a bug") }

// askFor posts a body as the API server does. ok means that the API server would accept the answer.
func askFor(t testing.TB, handlers map[string]http.Handler, path, body string) (answer admissionv1.AdmissionResponse, ok bool) {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	out := httptest.NewRecorder()
	handlers[path].ServeHTTP(out, r)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(out.Body.Bytes(), &review); err != nil || review.Response == nil {
		t.Fatalf("%s: %q is not a review: %v", path, out.Body, err)
	}
	return *review.Response, out.Code == http.StatusOK && review.Kind == "AdmissionReview" && review.APIVersion == "admission.k8s.io/v1"
}

func review(resource, kind, operation, object string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":%q,`+
		`"kind":{"group":"resource.k8s.io","version":"v1","kind":%q},"resource":{"group":"resource.k8s.io","version":"v1","resource":%q},"object":%s}}`, operation, kind, resource, object)
}

const (
	wrongClaim = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu.nvidia.com"}}],` +
		`"config":[{"opaque":{"driver":"gpu.nvidia.com","parameters":{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharring":{}}}}]}}}`
	goodClaim = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu.nvidia.com"}}]}}}`
)

// counted returns the number of reviews by kind, result and webhook.
func counted(t *testing.T, r *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range families {
		if f.GetName() != "gpu_dra_reviews_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[strings.Join(labels, " ")] = int(m.GetCounter().GetValue())
		}
	}
	return out
}

func TestWebhooks_InvalidClaim_AdmitDeniesAdviseWarns(t *testing.T) {
	registry := prometheus.NewRegistry()
	handlers := Webhooks(emptyView(), metrics.NewReviews(registry, "v"), false)
	wrong := review("resourceclaims", "ResourceClaim", "CREATE", wrongClaim)
	if a, ok := askFor(t, handlers, AdmitPath, wrong); !ok || a.Allowed || a.UID != "u" || a.Result.Code != http.StatusUnprocessableEntity || !strings.Contains(a.Result.Message, "sharring") {
		t.Errorf("%+v", a)
	}
	if a, ok := askFor(t, handlers, AdvisePath, wrong); !ok || !a.Allowed || a.UID != "u" || len(a.Warnings) != 1 || !strings.Contains(a.Warnings[0], "sharring") {
		t.Errorf("%+v", a)
	}
	good := review("resourceclaims", "ResourceClaim", "CREATE", goodClaim)
	for path := range handlers {
		for _, body := range []string{good, strings.ReplaceAll(review("widgets", "Widget", "CREATE", "{}"), "resource.k8s.io", "example.com")} {
			if a, ok := askFor(t, handlers, path, body); !ok || !a.Allowed {
				t.Errorf("%s: %+v", path, a)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{
		"ResourceClaim denied admit": 1, "ResourceClaim warned advise": 1, "ResourceClaim allowed admit": 1, "ResourceClaim allowed advise": 1,
		"other allowed admit": 1, "other allowed advise": 1,
	}, counted(t, registry)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWebhooks_DenyUnsatisfiable_BothDeny(t *testing.T) {
	found, err := slicetest.Node("l40s-4", "n", 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []*pool.Slice
	for _, s := range found {
		all = append(all, new((&pool.Shapes{}).Trim(s)))
	}
	view := fixed{viewOf(pool.Of(all))}
	body := review("resourceclaims", "ResourceClaim", "CREATE", strings.Replace(goodClaim, `"deviceClassName"`, `"count":5,"deviceClassName"`, 1))
	for _, deny := range []bool{false, true} {
		handlers := Webhooks(view, metrics.NewReviews(prometheus.NewRegistry(), "v"), deny)
		for path := range handlers {
			if a, ok := askFor(t, handlers, path, body); !ok || a.Allowed == deny {
				t.Errorf("%s, denyUnsatisfiable %v: %+v", path, deny, a)
			}
		}
	}
}

func TestWebhooks_Panic_OnlyAdmitDenies(t *testing.T) {
	registry := prometheus.NewRegistry()
	view := admission.NewClusterView("gpu.nvidia.com", ask.Asker{Evaluator: ask.NewEvaluator(), Classes: brokenLister{}}, nil)
	handlers := Webhooks(fixed{view}, metrics.NewReviews(registry, "v"), false)
	body := review("resourceclaims", "ResourceClaim", "CREATE", goodClaim)
	if a, ok := askFor(t, handlers, AdmitPath, body); !ok || a.Allowed || a.UID != "u" || a.Result.Code != http.StatusInternalServerError || !strings.Contains(a.Result.Message, "a bug of the controller: a bug") {
		t.Errorf("%+v", a)
	}
	if a, ok := askFor(t, handlers, AdvisePath, body); !ok || !a.Allowed || a.UID != "u" {
		t.Errorf("%+v", a)
	}
	if diff := cmp.Diff(map[string]int{"ResourceClaim denied admit": 1, "ResourceClaim allowed advise": 1}, counted(t, registry)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// held is a view for which reviews wait until end is closed.
type held struct {
	fixed
	reviews atomic.Int64
	end     chan struct{}
}

func (h *held) ClusterView() *admission.ClusterView {
	h.reviews.Add(1)
	<-h.end
	return h.fixed.ClusterView()
}

// TestWebhooks_ManyAtOnce_ValidationsTakeTurns sends more reviews than have a turn, to both webhooks.
func TestWebhooks_ManyAtOnce_ValidationsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view := &held{fixed: emptyView(), end: make(chan struct{})}
		handlers := Webhooks(view, metrics.NewReviews(prometheus.NewRegistry(), "v"), false)
		body := review("resourceclaims", "ResourceClaim", "CREATE", goodClaim)
		ask := func(ctx context.Context, path string) int {
			out := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			handlers[path].ServeHTTP(out, r)
			return out.Code
		}
		var answered sync.WaitGroup
		turns := 2 * runtime.GOMAXPROCS(0)
		for range turns {
			for _, path := range []string{AdmitPath, AdvisePath} {
				answered.Go(func() {
					if code := ask(t.Context(), path); code != http.StatusOK {
						t.Errorf("%s answered %d", path, code)
					}
				})
			}
		}
		synctest.Wait()
		if n := view.reviews.Load(); n != int64(turns) {
			t.Errorf("%d reviews at once, want %d", n, turns)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if code := ask(ctx, AdmitPath); code != http.StatusServiceUnavailable {
			t.Errorf("a review without a turn was answered with %d", code)
		}
		close(view.end)
		answered.Wait()
	})
}

func FuzzReviews(f *testing.F) {
	handlers := Webhooks(emptyView(), metrics.NewReviews(prometheus.NewRegistry(), "v"), false)
	class := `{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","metadata":{"name":"c"},"spec":{"selectors":[{"cel":{"expression":"device.driver == \"gpu.nvidia.com\""}}]}}`
	template := `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaimTemplate","metadata":{"name":"c"},"spec":{"spec":{"devices":{}}}}`
	for _, body := range []string{
		"", "{", "null", "[]", "{}", `{"request":null}`, `{"request":{}}`, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		`{"apiVersion":"v1","kind":"Pod"}`, `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}`,
		review("resourceclaims", "ResourceClaim", "CREATE", wrongClaim), review("resourceclaims", "ResourceClaim", "CREATE", goodClaim),
		review("resourceclaims", "ResourceClaim", "UPDATE", wrongClaim), review("resourceclaims", "ResourceClaim", "DELETE", "null"),
		review("resourceclaims", "ResourceClaim", "CREATE", "null"), review("resourceclaims", "ResourceClaim", "CREATE", "[1]"),
		review("deviceclasses", "DeviceClass", "CREATE", class), review("deviceclasses", "DeviceClass", "UPDATE", class),
		review("resourceclaimtemplates", "ResourceClaimTemplate", "CREATE", template), review("pods", "Pod", "CONNECT", "{}"),
		strings.ReplaceAll(review("resourceclaims", "ResourceClaim", "CREATE", goodClaim), `"v1"`, `"v1beta1"`),
		strings.ReplaceAll(review("resourceclaims", "ResourceClaim", "CREATE", goodClaim), `"v1"`, `"v9"`),
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		askFor(t, handlers, AdmitPath, body)
		if a, ok := askFor(t, handlers, AdvisePath, body); ok && !a.Allowed {
			t.Errorf("%q is denied by the webhook that only warns: %+v", body, a.Result)
		}
	})
}

func TestWebhooks_NoReview_Answered(t *testing.T) {
	handlers := Webhooks(emptyView(), metrics.NewReviews(prometheus.NewRegistry(), "v"), false)
	for path, h := range handlers {
		for name, r := range map[string]*http.Request{
			"no body":   httptest.NewRequest(http.MethodGet, path, nil),
			"a form":    httptest.NewRequest(http.MethodPost, path, strings.NewReader("a=b")),
			"too large": httptest.NewRequest(http.MethodPost, path, strings.NewReader(strings.Repeat("x", 8<<20))),
		} {
			out := httptest.NewRecorder()
			h.ServeHTTP(out, r)
			var review admissionv1.AdmissionReview
			if err := json.Unmarshal(out.Body.Bytes(), &review); err != nil || review.Kind != "" || review.Response.Allowed {
				t.Errorf("%s, %s: %q, %v", path, name, out.Body, err)
			}
		}
	}
}

// TestWebhooks_ManyEmptyParts_LittleMemory posts objects that no API server accepts: the parts of a list or a map take far
// more memory than bytes of the body.
func TestWebhooks_ManyEmptyParts_LittleMemory(t *testing.T) {
	handlers := Webhooks(emptyView(), metrics.NewReviews(prometheus.NewRegistry(), "v"), false)
	many := func(before, part, after string) string {
		return before + strings.Repeat(part+",", (4<<20-1000)/(len(part)+1)) + part + after
	}
	claim := func(devices string) string {
		return review("resourceclaims", "ResourceClaim", "CREATE", `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","spec":{"devices":{`+devices+`}}}`)
	}
	for name, body := range map[string]string{
		"requests":          claim(many(`"requests":[`, "{}", "]")),
		"alternatives":      claim(many(`"requests":[{"firstAvailable":[`, "{}", "]}]")),
		"selectors":         claim(many(`"requests":[{"exactly":{"selectors":[`, `{"cel":{}}`, "]}}]")),
		"tolerations":       claim(many(`"requests":[{"exactly":{"tolerations":[`, `{}`, "]}}]")),
		"constraints":       claim(many(`"constraints":[`, "{}", "]")),
		"parameters":        claim(many(`"config":[`, "{}", "]")),
		"nested parameters": claim(many(`"config":[{"opaque":{"driver":"gpu.nvidia.com","parameters":{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","x":[`, "[]", "]}}}]")),
		"groups":            strings.Replace(claim(""), `"uid":"u"`, `"uid":"u","userInfo":{"groups":[`+many("", `""`, "")+`]}`, 1),
		"classes":           review("deviceclasses", "DeviceClass", "CREATE", `{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","spec":{`+many(`"config":[`, "{}", "]")+`}}`),
		"owners":            review("deviceclasses", "DeviceClass", "CREATE", `{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","metadata":{`+many(`"ownerReferences":[`, "{}", "]")+`}}`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a, _ := askFor(t, handlers, AdmitPath, body)
		runtime.ReadMemStats(&after)
		used := (after.TotalAlloc - before.TotalAlloc) >> 20
		if a.Allowed || used > 40 {
			t.Errorf("%s: allowed %v, with %d MiB for a body of %d MiB", name, a.Allowed, used, len(body)>>20)
		}
	}
	text := strings.Replace(goodClaim, `"c"`, `"c","annotations":{"a":"`+strings.Repeat(`{\"[,`, maxParts)+`"}`, 1)
	if a, ok := askFor(t, handlers, AdmitPath, review("resourceclaims", "ResourceClaim", "CREATE", text)); !ok || !a.Allowed {
		t.Errorf("a long text: %+v", a)
	}
}
