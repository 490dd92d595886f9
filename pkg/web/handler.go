// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

//go:embed assets
var embedded embed.FS

// Explain answers why a claim has no devices. The answer is encoded as JSON.
type Explain func(ctx context.Context, namespace, name string) (any, error)

// beat is the longest time without a line. The page takes a longer silence for the end of the server.
const beat = 10 * time.Second

// NewHandler serves the page of a cluster under a token.
func NewHandler(token string, c *Cluster, explain Explain) http.Handler {
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

// serveWatch sends all lines of the feed, and then each change, until the browser closes the connection.
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
		case <-time.After(beat):
		}
	}
}
