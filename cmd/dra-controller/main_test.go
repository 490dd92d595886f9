// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun_CommandLines_ExitCodes(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "kubeconfig")
	for name, tc := range map[string]struct {
		args           []string
		want           int
		stdout, stderr string
	}{
		"version":                      {[]string{"--version"}, 0, "unknown\n", ""},
		"help":                         {[]string{"--help"}, 0, "--class-grace", ""},
		"unknown flag":                 {[]string{"--frobnicate"}, 2, "", "frobnicate"},
		"no namespace":                 {nil, 2, "", "--pod-namespace"},
		"no such check":                {[]string{"--pod-namespace=n", "--check=all"}, 2, "", `"all"`},
		"argument, no flag":            {[]string{"--pod-namespace=n", "serve"}, 2, "", `"serve"`},
		"no such kubeconfig":           {[]string{"--pod-namespace=n", "--webhook=false", "--kubeconfig=" + missing}, 1, "", missing},
		"a check that cannot be begun": {[]string{"--pod-namespace=n", "--check=uninstall", "--kubeconfig=" + missing}, 1, missing, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if got := run(context.Background(), tc.args, nil, &stdout, &stderr); got != tc.want {
				t.Errorf("exit code %d, want %d", got, tc.want)
			}
			if !strings.Contains(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
			}
		})
	}
}

// TestCheck_Uninstall_ReportsAndSetsExitCode uses an API server that serves only claims.
func TestCheck_Uninstall_ReportsAndSetsExitCode(t *testing.T) {
	for name, c := range map[string]struct {
		items string
		want  int
		out   string
	}{
		"no claims": {"", 0, "No claim has devices of gpu.nvidia.com"},
		"a claim": {`{"metadata":{"namespace":"ns","name":"c"},"status":{"allocation":{"devices":{"results":[{"driver":"gpu.nvidia.com"}]}}}}`,
			1, "ns/c"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(`{"kind":"ResourceClaimList","apiVersion":"resource.k8s.io/v1","metadata":{},"items":[` + c.items + `]}`))
			}))
			defer server.Close()
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			text := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server.URL +
				`"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`
			if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			got := run(context.Background(), []string{"--pod-namespace=ns", "--check=uninstall", "--kubeconfig=" + kubeconfig}, nil, &stdout, &stderr)
			if got != c.want || !strings.Contains(stdout.String(), c.out) {
				t.Errorf("exit code %d, stdout %q, stderr %q", got, stdout.String(), stderr.String())
			}
		})
	}
}
