// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpu-dra-driver/cmd/dra-kubelet-plugin/flags"
	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/record"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/health/tracker"
	"gpu-dra-driver/pkg/node/metrics"
)

func TestRun_CommandLines_GiveExitCodes(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "kubeconfig")
	for name, tc := range map[string]struct {
		args           []string
		want           int
		stdout, stderr string
	}{
		"version":             {[]string{"--version"}, 0, "unknown\n", ""},
		"help":                {[]string{"--help"}, 0, "--kubelet-plugins-directory-path", ""},
		"unknown flag":        {[]string{"--frobnicate"}, 2, "", "frobnicate"},
		"no node":             {nil, 2, "", "--node-name"},
		"no such kubeconfig":  {[]string{"--node-name=n", "--kubeconfig=" + missing}, 1, "", missing},
		"argument, no flag":   {[]string{"--node-name=n", "serve"}, 2, "", `"serve"`},
		"clear no faults":     {[]string{"--node-name=n", "--clear-faults=0000:1B:00.0"}, 0, "GPU 0000:1b:00.0 has no remembered faults\n", ""},
		"clear no address":    {[]string{"--node-name=n", "--clear-faults=gpu-0"}, 2, "", "--clear-faults"},
		"value out of bounds": {[]string{"--node-name=n", "--healthcheck-port=70000"}, 2, "", "70000"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			args := append(tc.args, "--kubelet-plugins-directory-path="+dir, "--kubelet-registrar-directory-path="+filepath.Join(dir, "r"))
			var stdout, stderr bytes.Buffer
			if got := run(context.Background(), args, nil, &stdout, &stderr); got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}

func TestClearFaults_RecordedFault_PrintsAndRemovesIt(t *testing.T) {
	c := flags.Config{KubeletPluginsDir: t.TempDir(), DriverName: "gpu.nvidia.com", ClearFaults: "0000:1b:00.0"}
	machine := host.New(host.Options{})
	defer machine.Close()
	if err := os.MkdirAll(filepath.Dir(settingLock(c, tracker.Setting)), 0o755); err != nil {
		t.Fatal(err)
	}
	records, err := openRecords(machine, c, tracker.Setting)
	if err == nil {
		err = records.Put(record.GPU{PCIAddress: c.ClearFaults, Faults: []gpu.Fault{{State: "reset", Cause: "XID 46"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"GPU 0000:1b:00.0: cleared reset (XID 46)\n", "GPU 0000:1b:00.0 has no remembered faults\n"} {
		var stdout, stderr bytes.Buffer
		if code := clearFaults(c, &stdout, &stderr); code != 0 || stdout.String() != want {
			t.Errorf("exit code %d, stdout %q, stderr %q, want %q", code, stdout.String(), stderr.String(), want)
		}
	}
}

// parsed returns the configuration of a plugin in a directory of the test, with an API server that does not answer.
func parsed(t *testing.T, args ...string) flags.Config {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := flags.Parse(append(args, "--node-name=n", "--kubeconfig="+kubeconfig, "--kubelet-plugins-directory-path="+dir,
		"--kubelet-registrar-directory-path="+filepath.Join(dir, "r"), "--cdi-root="+filepath.Join(dir, "cdi")), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestServe_Ends_KeepsLocks checks that work in flight at the end keeps its locks until the process is gone.
func TestServe_Ends_KeepsLocks(t *testing.T) {
	c := parsed(t, "--http-endpoint=256.0.0.1:1")
	machine := host.New(host.Options{})
	if err := serve(t.Context(), c, machine); err == nil || !strings.Contains(err.Error(), "--http-endpoint") {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	next := host.New(host.Options{})
	defer next.Close()
	lock, err := next.Lock(ctx, filepath.Join(dataDir(c), "instance.lock"), 1)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the next process has the lock of this one: %v, %v", lock, err)
	}
	machine.Close() // It was reachable, and so open, until here.
}

func TestRoutes_Profiles_AreServedOnlyIfConfigured(t *testing.T) {
	get := func(c flags.Config, path string) (int, string) {
		server := httptest.NewServer(routes(c, metrics.New(metrics.Options{Driver: "d"})))
		defer server.Close()
		r, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(body)
	}
	plain := flags.Config{MetricsPath: "/metrics"}
	profiled := flags.Config{MetricsPath: "/m", PprofPath: "/debug/pprof"}
	moved := flags.Config{PprofPath: "/p/"}
	for _, tc := range []struct {
		c    flags.Config
		path string
		code int
		text string
	}{
		{plain, "/metrics", 200, "gpu_dra_build_info"},
		{plain, "/debug/pprof/", 404, ""},
		{plain, "/debug/pprof/heap", 404, ""},
		{profiled, "/metrics", 404, ""},
		{profiled, "/m", 200, "gpu_dra_build_info"},
		{profiled, "/debug/pprof/", 200, "goroutine"},
		{profiled, "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{profiled, "/debug/pprof/cmdline", 200, ""},
		{moved, "/p/goroutine?debug=1", 200, "goroutine profile"},
		{moved, "/p/", 200, "goroutine"},
		{moved, "/metrics", 404, ""},
	} {
		if code, body := get(tc.c, tc.path); code != tc.code || !strings.Contains(body, tc.text) {
			t.Errorf("%+v %s: %d", tc.c, tc.path, code)
		}
	}
}

func TestServeHTTP_BadAddress_ReturnsError(t *testing.T) {
	if _, err := serveHTTP(flags.Config{HTTPEndpoint: "256.0.0.1:1"}, nil); err == nil || !strings.Contains(err.Error(), "--http-endpoint") {
		t.Errorf("error %v", err)
	}
	stop, err := serveHTTP(flags.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stop()
}
