// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/peers"
	"gpu-dra-driver/pkg/node/metrics"
)

// httpLimits bound the server, which any pod reaches. A profile takes half a minute by default.
var httpLimits = peers.Limits{Connections: 64, Turns: 4, Body: 64 << 10, Bodies: 32 << 20, Time: time.Minute}

// serveHTTP serves metrics and, if configured, profiles, until stop is called.
func serveHTTP(c flags.Config, m *metrics.Metrics) (stop func(), err error) {
	if c.HTTPEndpoint == "" {
		return func() {}, nil
	}
	listener, err := peers.Listen(c.HTTPEndpoint, httpLimits)
	if err != nil {
		return nil, fmt.Errorf("serve metrics at --http-endpoint: %w", err)
	}
	server := peers.NewServer(routes(c, m), httpLimits)
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.Background().Error(err, "Serving metrics failed")
		}
	}()
	klog.Background().Info("Serving HTTP", "address", listener.Addr(), "metrics", c.MetricsPath, "profiles",
		c.PprofPath)
	return func() { _ = server.Close() }, nil
}

func routes(c flags.Config, m *metrics.Metrics) http.Handler {
	mux := http.NewServeMux()
	if c.MetricsPath != "" {
		mux.Handle("GET "+c.MetricsPath, m.Handler())
	}
	if c.PprofPath != "" {
		profiles(mux, strings.TrimSuffix(c.PprofPath, "/"))
	}
	return mux
}

// profiles serves Go's profiles under any path; pprof's own index works only under /debug/pprof/.
func profiles(mux *http.ServeMux, path string) {
	mux.HandleFunc("GET "+path+"/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET "+path+"/profile", pprof.Profile)
	mux.HandleFunc("GET "+path+"/symbol", pprof.Symbol)
	mux.HandleFunc("GET "+path+"/trace", pprof.Trace)
	mux.HandleFunc("GET "+path+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		pprof.Handler(r.PathValue("name")).ServeHTTP(w, r)
	})
	mux.Handle("GET "+path+"/{$}", http.StripPrefix(strings.TrimSuffix(path, "/debug/pprof"),
		http.HandlerFunc(pprof.Index)))
}
