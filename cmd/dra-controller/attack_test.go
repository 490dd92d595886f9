// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/pkg/cluster/ask"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/metrics"
)

// review is an API server's request about a claim.
const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",` +
	`"kind":{"group":"resource.k8s.io","version":"v1","kind":"ResourceClaim"},"resource":{"group":"resource.k8s.io","version":"v1","resource":"resourceclaims"},` +
	`"object":{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"c"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu.nvidia.com"}}]}}}}}`

func post(length int) string {
	return fmt.Sprintf("POST /admit HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", length)
}

// attacks are clients of one connection. An attack ends with the connection.
var attacks = []struct {
	name    string
	clients int
	plain   bool
	// endless means that run lasts until the end.
	endless bool
	run     func(ctx context.Context, c net.Conn)
}{
	{"handshakes that hang", 1100, true, false, func(context.Context, net.Conn) {}},
	{"half a record of TLS", 300, true, false, func(_ context.Context, c net.Conn) { _, _ = c.Write([]byte{22, 3, 1, 2}) }},
	{"a slow header", 300, false, false, func(_ context.Context, c net.Conn) { _, _ = io.WriteString(c, "POST /admit HTTP/1.1\r\nHost: w") }},
	{"a header of many lines", 50, false, false, func(_ context.Context, c net.Conn) {
		_, _ = io.WriteString(c, "POST /admit HTTP/1.1\r\nHost: webhook\r\n"+strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 200))
	}},
	{"a slow body", 300, false, false, func(_ context.Context, c net.Conn) { _, _ = io.WriteString(c, post(1000)+"{") }},
	{"no body", 300, false, false, func(_ context.Context, c net.Conn) { _, _ = io.WriteString(c, post(1000)) }},
	{"a trickling body", 300, false, true, func(ctx context.Context, c net.Conn) {
		_, _ = io.WriteString(c, post(1<<20))
		trickle(ctx, c, "{", 50*time.Millisecond)
	}},
	{"a trickling chunked body", 100, false, true, func(ctx context.Context, c net.Conn) {
		_, _ = io.WriteString(c, "POST /advise HTTP/1.1\r\nHost: webhook\r\nTransfer-Encoding: chunked\r\n\r\n")
		trickle(ctx, c, "1\r\n{\r\n", 50*time.Millisecond)
	}},
	{"large bodies without their end", 12, false, false, func(_ context.Context, c net.Conn) {
		_, _ = io.WriteString(c, post(4<<20)+strings.Repeat(" ", 4<<20-1))
	}},
	{"answers that are not read", 30, false, true, func(ctx context.Context, c net.Conn) {
		long := strings.Replace(review, `"r"`, `"`+strings.Repeat("r", 50_000)+`"`, 1)
		for ctx.Err() == nil {
			if _, err := io.WriteString(c, post(len(long))+long); err != nil {
				return
			}
		}
	}},
	{"idle connections", 1100, false, false, func(_ context.Context, c net.Conn) { answered(c) }},
	{"reviews one after the other", 100, false, true, func(ctx context.Context, c net.Conn) {
		for ctx.Err() == nil && answered(c) {
		}
	}},
}

func trickle(ctx context.Context, c net.Conn, text string, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
		<-ticker.C
	}
}

// answered posts a review and reads the answer.
func answered(c net.Conn) bool {
	if _, err := io.WriteString(c, post(len(review))+review); err != nil {
		return false
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false
	}
	defer r.Body.Close()
	_, err = io.Copy(io.Discard, r.Body)
	return err == nil
}

// attack opens the connections of an attack, and opens them again when the server ends them. It returns once each client
// has begun.
func attack(ctx context.Context, wg *sync.WaitGroup, address, from string, clients int, plain, endless bool, run func(context.Context, net.Conn)) {
	var begun sync.WaitGroup
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for range clients {
		begun.Add(1)
		wg.Go(func() {
			first := sync.OnceFunc(begun.Done)
			defer first()
			for ctx.Err() == nil {
				c, err := dialer.DialContext(ctx, "tcp", address)
				if err != nil {
					continue
				}
				bare := c
				stop := context.AfterFunc(ctx, func() { _ = bare.Close() })
				if !plain {
					secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
					if secure.HandshakeContext(ctx) != nil {
						_ = c.Close()
						continue
					}
					c = secure
				}
				if endless {
					first()
				}
				run(ctx, c)
				first()
				var end [1]byte
				_, _ = io.ReadFull(c, end[:])
				stop()
				_ = c.Close()
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
	begun.Wait()
}

// TestServer_Attacked_AnswersReviews attacks the webhook's server from the address of its API server and from another
// one. Reviews are answered meanwhile, on new connections and on kept ones.
func TestServer_Attacked_AnswersReviews(t *testing.T) {
	view := admission.NewClusterView("gpu.nvidia.com", ask.Asker{
		Evaluator: ask.NewEvaluator(), Classes: resourcelisters.NewDeviceClassLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)),
	}, nil)
	for _, a := range attacks {
		for from, whose := range map[string]string{"127.0.0.1": "its own address", "127.0.0.2": "another address"} {
			t.Run(a.name+" from "+whose, func(t *testing.T) {
				reviews := metrics.NewReviews(prometheus.NewRegistry(), "v")
				address, transport := startServer(t, controller.Webhooks(fixed{view}, reviews, false))
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				defer wg.Wait()
				defer cancel()
				kept := &http.Client{Transport: transport}
				ask := func(client *http.Client) error {
					response, err := client.Post("https://"+address+"/admit", "application/json", strings.NewReader(review))
					if err != nil {
						return err
					}
					defer response.Body.Close()
					body, err := io.ReadAll(response.Body)
					var answer admissionv1.AdmissionReview
					if err := json.Unmarshal(body, &answer); err != nil || response.StatusCode != http.StatusOK || answer.Response == nil || !answer.Response.Allowed {
						return fmt.Errorf("answer %d, %q: %w", response.StatusCode, body, err)
					}
					return err
				}
				if err := ask(kept); err != nil {
					t.Fatal(err)
				}
				attack(ctx, &wg, address, from, a.clients, a.plain, a.endless, a.run)
				slowest := time.Duration(0)
				for range 5 {
					began := time.Now()
					if err := ask(kept); err != nil {
						t.Fatalf("a review on a kept connection: %v", err)
					}
					fresh := transport.Clone()
					fresh.DisableKeepAlives = true
					if err := ask(&http.Client{Transport: fresh}); err != nil {
						t.Fatalf("a review on a new connection: %v", err)
					}
					slowest = max(slowest, time.Since(began))
				}
				t.Logf("the slowest two reviews took %v", slowest.Round(time.Millisecond))
			})
		}
	}
}

// fixed is a view that does not change.
type fixed struct{ of *admission.ClusterView }

func (f fixed) ClusterView() *admission.ClusterView { return f.of }
