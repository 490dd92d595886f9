// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpu-dra-driver/pkg/show/bundle"
)

func files(t *testing.T, archive []byte) (names []string, contents map[string]string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		contents[h.Name] = string(text)
	}
}

func TestArchive_LimitAndNames_EqualBytes(t *testing.T) {
	write := func() []byte {
		var out bytes.Buffer
		a := bundle.New(&out, time.Unix(1e9, 0), 20)
		a.Add("a.txt", []byte("token=abcdef"))
		a.Add("large.txt", make([]byte, 100))
		a.Add("../../etc/./passwd", []byte("x"))
		a.Missing("Events: you may not list them")
		a.Missing("Events: you may not list them")
		if n, missing, err := a.Close(); err != nil || n != 3 || missing != 2 {
			t.Errorf("%d files, %d missing, %v", n, missing, err)
		}
		return out.Bytes()
	}
	names, contents := files(t, write())
	if diff := cmp.Diff([]string{"gpu-bundle/a.txt", "gpu-bundle/etc/passwd", "gpu-bundle/missing.txt"}, names); diff != "" {
		t.Error(diff)
	}
	if got := contents["gpu-bundle/a.txt"]; got != "token=REDACTED" {
		t.Errorf("a.txt is %q", got)
	}
	for _, text := range []string{"large.txt: it has 100 bytes", "you may not list them"} {
		if strings.Count(contents["gpu-bundle/missing.txt"], text) != 1 {
			t.Errorf("missing.txt lacks %q: %q", text, contents["gpu-bundle/missing.txt"])
		}
	}
	if !bytes.Equal(write(), write()) {
		t.Error("two archives of the same files differ")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestArchive_DiskFull_ReturnsError(t *testing.T) {
	a := bundle.New(full{}, time.Unix(0, 0), 1<<20)
	a.Add("a.txt", bytes.Repeat([]byte("x"), 1000))
	if _, _, err := a.Close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v", err)
	}
}

func TestRedactText_Secrets_Replaced(t *testing.T) {
	for in, want := range map[string]string{
		"-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nnext": "REDACTED\nnext",
		"-----BEGIN PRIVATE KEY-----\nMIIE":                                          "REDACTED",
		"Authorization: Bearer abcdefgh.ijklmnop-qr":                                 "Authorization: Bearer REDACTED",
		"jwt eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl.c2lnbmF0dXJl end":                 "jwt REDACTED end",
		"https://user:hunter2@proxy.example.com:8080/":                               "https://REDACTEDproxy.example.com:8080/",
		`{"password": "hunter2", "a": 1}`:                                            `{"password": "REDACTED", "a": 1}`,
		"AWS_SECRET_ACCESS_KEY=abcdefgh":                                             "AWS_SECRET_ACCESS_KEY=REDACTED",
		"GPU 0000:1b:00.0 of claim team-a/train-0: XID 79":                           "GPU 0000:1b:00.0 of claim team-a/train-0: XID 79",
	} {
		if got := string(bundle.RedactText([]byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestRedactObject_EnvironmentFlagsAndParameters_Replaced(t *testing.T) {
	object := map[string]any{
		"metadata": map[string]any{"name": "p", "managedFields": []any{"x"}, "annotations": map[string]any{
			"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "kept",
		}},
		"env":  []any{map[string]any{"name": "DB_PASSWORD", "value": "abc"}, map[string]any{"name": "NODE_NAME", "value": "n1"}},
		"args": []any{"--auth-token=abc", "-v=4"},
		"config": []any{
			map[string]any{"driver": "gpu.nvidia.com", "parameters": map[string]any{"kind": "GpuConfig"}},
			map[string]any{"driver": "nic.example.com", "parameters": map[string]any{"psk": "abc"}},
		},
	}
	bundle.RedactObject(object, "gpu.nvidia.com")
	want := map[string]any{
		"metadata": map[string]any{"name": "p", "annotations": map[string]any{"note": "kept"}},
		"env":      []any{map[string]any{"name": "DB_PASSWORD", "value": "REDACTED"}, map[string]any{"name": "NODE_NAME", "value": "n1"}},
		"args":     []any{"--auth-token=REDACTED", "-v=4"},
		"config": []any{
			map[string]any{"driver": "gpu.nvidia.com", "parameters": map[string]any{"kind": "GpuConfig"}},
			map[string]any{"driver": "nic.example.com", "parameters": "REDACTED"},
		},
	}
	if diff := cmp.Diff(want, object); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzRedactText(f *testing.F) {
	f.Add("token: abcdef")
	f.Fuzz(func(t *testing.T, text string) {
		// The first pass of a text leaves no private key.
		if got := string(bundle.RedactText([]byte(text))); strings.Contains(got, "BEGIN PRIVATE KEY-----") {
			t.Errorf("%q becomes %q", text, got)
		}
	})
}
