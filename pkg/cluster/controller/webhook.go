// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sync/semaphore"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/klog/v2"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/metrics"
)

// Paths of the webhooks.
const (
	AdmitPath  = "/admit"
	AdvisePath = "/advise"
)

// Webhooks returns the handlers of the webhooks by path: one denies errors, another one only warns of them. Both deny
// unsatisfiable claims if denyUnsatisfiable is set. They change nothing for any client.
func Webhooks(view viewer, m *metrics.Reviews, denyUnsatisfiable bool) map[string]http.Handler {
	// A validation needs a CPU all the time, so more of them at once only delay the handshakes and reviews of others.
	turns := semaphore.NewWeighted(2 * int64(runtime.GOMAXPROCS(0)))
	validate := func(o admission.Options, name string) http.Handler {
		return inTurn{turns, Webhook(validation{view, o}, m, name, o.Binding)}
	}
	return map[string]http.Handler{
		AdmitPath:  validate(admission.Options{Binding: true, DenyUnsatisfiable: denyUnsatisfiable}, "admit"),
		AdvisePath: validate(admission.Options{DenyUnsatisfiable: denyUnsatisfiable}, "advise"),
	}
}

// inTurn is a handler whose requests wait for one of the turns that it shares with others.
type inTurn struct {
	turns *semaphore.Weighted
	http.Handler
}

func (h inTurn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.turns.Acquire(r.Context(), 1) != nil {
		http.Error(w, "the controller reviews too many objects at once; try again", http.StatusServiceUnavailable)
		return
	}
	defer h.turns.Release(1)
	h.Handler.ServeHTTP(w, r)
}

// reviewer answers the requests of a webhook.
type reviewer interface {
	Review(context.Context, *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse
}

// viewer has the current view of the cluster.
type viewer interface {
	ClusterView() *admission.ClusterView
}

// validation reviews objects with the current view of the cluster.
type validation struct {
	viewer
	o admission.Options
}

// Review implements reviewer.
func (v validation) Review(ctx context.Context, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	return admission.Review(ctx, v.ClusterView(), r, v.o)
}

// NoClientCertificate is the answer to a request without the client certificate that the webhook needs.
const NoClientCertificate = "the request has no client certificate of the webhook's client authority"

// OnlyClients refuses requests without a verified client certificate. It does so with an answer, so that the API
// server's error shows the reason.
func OnlyClients(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, NoClientCertificate, http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// maxParts is the number of objects, lists and their elements in the body of a request. Each can take hundreds of bytes
// once decoded: 4 MiB of empty ones took a gigabyte. A claim has hundreds.
const maxParts = 1 << 15

// parts reads JSON, and fails at too many parts.
type parts struct {
	io.ReadCloser
	count           int
	inText, escaped bool
}

func (p *parts) Read(data []byte) (int, error) {
	n, err := p.ReadCloser.Read(data)
	for _, b := range data[:n] {
		switch {
		case p.escaped:
			p.escaped = false
		case b == '"':
			p.inText = !p.inText
		case p.inText:
			p.escaped = b == '\\'
		case b == '{' || b == '[' || b == ',':
			p.count++
		}
	}
	if p.count > maxParts {
		return n, fmt.Errorf("the review has more than %d objects, lists and elements; ask for less in one claim",
			maxParts)
	}
	return n, err
}

// Webhook returns the handler of a reviewer. If binding is set, a bug denies the object.
func Webhook(by reviewer, m *metrics.Reviews, name string, binding bool) http.Handler {
	reviewed := &ctrladmission.Webhook{
		Handler: ctrladmission.HandlerFunc(func(ctx context.Context,
			r ctrladmission.Request) (answer ctrladmission.Response) {
			began, result := time.Now(), "allowed"
			defer func() {
				// Only a denying webhook answers a bug with an error.
				if p := recover(); p != nil {
					klog.FromContext(ctx).Error(nil, "A bug of the controller stopped a review", "webhook", name,
						"object", klog.KRef(r.Namespace, r.Name), "panic", p, "stack", string(debug.Stack()))
					answer = ctrladmission.Allowed("")
					if binding {
						result, answer = "denied", ctrladmission.Errored(http.StatusInternalServerError,
							fmt.Errorf("a bug of the controller: %v", p))
					}
				}
				m.Reviewed(name, kindLabel(r.Kind.Kind), result, time.Since(began))
			}()
			response := by.Review(ctx, &r.AdmissionRequest)
			switch {
			case !response.Allowed:
				result = "denied"
			case len(response.Warnings) > 0:
				result = "warned"
			}
			return ctrladmission.Response{AdmissionResponse: *response}
		}),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != http.NoBody {
			r.Body = &parts{ReadCloser: r.Body}
		}
		reviewed.ServeHTTP(w, r)
	})
}

// kindLabel limits the values of the label, because a request can name any kind.
func kindLabel(kind string) string {
	switch kind {
	case "ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "Pod":
		return kind
	}
	return "other"
}
