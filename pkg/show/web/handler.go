// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

//go:embed assets
var embedded embed.FS

// Explain answers why a claim has no devices. The answer is encoded as JSON.
type Explain func(ctx context.Context, namespace, name string) (any, error)

// heartbeatInterval is the longest time without a line. The page takes a longer silence for the end of the server.
const heartbeatInterval = 10 * time.Second

// NewHandler serves the page of a cluster under a token.
func NewHandler(token string, c *Cluster, explain Explain, measure Measure) http.Handler {
	assets, err := fs.Sub(embedded, "assets")
	if err != nil {
		panic(err) // The binary lacks its files.
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(assets))
	mux.HandleFunc("GET /api/watch", c.serveWatch)
	mux.HandleFunc("GET /api/why", func(w http.ResponseWriter, r *http.Request) {
		answer, err := explain(r.Context(), r.URL.Query().Get("namespace"), r.URL.Query().Get("name"))
		if err != nil {
			http.Error(w, err.Error(), codeOf(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // The browser may have closed the connection.
	})
	mux.Handle("GET /api/use", &meter{measure: measure, nodes: map[string]measured{}})
	return Guard(token, mux)
}

func codeOf(err error) int {
	switch {
	case apierrors.IsNotFound(err):
		return http.StatusNotFound
	case apierrors.IsForbidden(err):
		return http.StatusForbidden
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// serveWatch sends all lines of the feed, and then each change, until the browser closes the connection. The line reset
// precedes all that exists: the page forgets the rest. The line shown ends a batch: the page draws it.
func (c *Cluster) serveWatch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	version := uint64(0)
	for {
		b := c.feed.since(version)
		if b.reset {
			b.lines = append([][]byte{[]byte(`{"reset":true}`)}, b.lines...)
		}
		for _, text := range append(b.lines, []byte(`{"shown":true}`)) {
			if _, err := w.Write(append(text[:len(text):len(text)], '\n')); err != nil {
				return
			}
		}
		if out.Flush() != nil {
			return
		}
		version = b.version
		select {
		case <-r.Context().Done():
			return
		case <-b.more:
		case <-time.After(heartbeatInterval):
		}
	}
}

// Listen opens a port of the loopback interface; 0 is any free one.
func Listen(port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen on port %d of 127.0.0.1: %w", port, err)
	}
	return l, nil
}

// URL is the address of the page.
func URL(l net.Listener, token string) string {
	return "http://" + l.Addr().String() + "/" + token + "/"
}

// Serve serves a handler until the context ends, which is not an error. Requests then have a second to end.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve the page: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("close the page: %w", err)
	}
	return nil
}
