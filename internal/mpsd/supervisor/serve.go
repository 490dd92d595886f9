// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"gpu-dra-driver/internal/mpsd"
)

// Serve answers on the socket until the context ends.
func (s *Supervisor) Serve(ctx context.Context) error {
	path := filepath.Join(s.o.Dir, mpsd.SocketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier supervisor: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen for the plugin: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return fmt.Errorf("keep others from the socket: %w", err)
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the plugin: %w", err)
	}
	return nil
}

// handler serves the protocol of package `mpsd`.
func (s *Supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/daemons/{name}", func(w http.ResponseWriter, r *http.Request) {
		var d mpsd.Daemon
		// Unknown fields of a newer plugin are ignored.
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&d); err != nil ||
			d.Name != r.PathValue("name") {
			http.Error(w, "the description of the daemon is not readable", http.StatusBadRequest)
			return
		}
		ctx, cancel := mpsd.WithDeadline(r)
		defer cancel()
		// The answer must arrive before the plugin's timeout, or it cannot give the reason.
		if wait, err := time.ParseDuration(r.URL.Query().Get("wait")); err == nil {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, wait)
			defer cancel()
		}
		status, err := s.ensure(ctx, d)
		answer(w, status, err)
	})
	mux.HandleFunc("DELETE /v1/daemons/{name}", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := mpsd.WithDeadline(r)
		defer cancel()
		answer(w, struct{}{}, s.stop(ctx, r.PathValue("name")))
	})
	mux.HandleFunc("GET /v1/daemons", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second) // The request waits so long for a change.
		defer cancel()
		answer(w, s.list(ctx, r.URL.Query().Get("after")), nil)
	})
	return mux
}

func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // The plugin closed the connection: it asks again.
}
