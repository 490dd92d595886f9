// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/creack/pty"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// onTerminal runs the plugin on a terminal of 80 columns and returns its output.
func (e *env) onTerminal(args ...string) string {
	e.t.Helper()
	ours, theirs, err := pty.Open()
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = ours.Close() }()
	if err := pty.Setsize(theirs, &pty.Winsize{Cols: 80, Rows: 25}); err != nil {
		e.t.Fatal(err)
	}
	var out bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&out, ours) // It ends with an error once the other side is closed.
	}()
	run(e.t.Context(), append(args, "--kubeconfig="+e.kubeconfig), genericiooptions.IOStreams{In: strings.NewReader(""), Out: theirs, ErrOut: io.Discard})
	_ = theirs.Close()
	<-read
	return strings.ReplaceAll(out.String(), "\r\n", "\n")
}

// TestOutput_Terminal_IsColoured compares the output on a terminal with the output to a file.
func TestOutput_Terminal_IsColoured(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"},
		claim("team-a", "train-0", device("n1", "gpu-0000-1b-00-0")), claim("team-a", "gone", device("n1", "gpu-0000-ff-00-0")))
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
	e.metrics("plugin", measurements)
	e.runtime("containerd://2.3.7")
	e.taint("gpu-0000-43-00-0", "lost")
	manifest := filepath.Join(t.TempDir(), "claim.yaml")
	if err := os.WriteFile(manifest, []byte(`apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: asked, namespace: team-a}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile("\x1b\\[[0-9]*m")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"ls"}, "\x1b[31mlost\x1b[0m"},
		{[]string{"ls", "-o", "wide", "--no-headers"}, "\x1b[32mok\x1b[0m"},
		{[]string{"ls", "pods", "-A"}, "\x1b[90mNAMESPACE"},
		{[]string{"claims", "-A"}, "\x1b[31mgpu-0000-ff-00-0!\x1b[0m"},
		{[]string{"claims", "-A"}, "\x1b[32mreserved\x1b[0m"},
		{[]string{"top", "claims"}, "\x1b[33m62%\x1b[0m"},
		{[]string{"doctor", "-v"}, "\x1b[31mproblem\x1b[0m"},
		{[]string{"why", "-f", manifest}, "\x1b[33mclaim team-a/asked waits"},
		{[]string{"layout"}, "\x1b[36maaaaaaa"},
	} {
		t.Setenv("TERM", "xterm")
		t.Setenv("NO_COLOR", "")
		coloured := e.onTerminal(c.args...)
		_, plain, _ := e.kubectl(c.args...)
		if !strings.Contains(coloured, c.want) {
			t.Errorf("%v lacks %q: %q", c.args, c.want, coloured)
		}
		if without := codes.ReplaceAllString(coloured, ""); without != plain {
			t.Errorf("%v: without colours the terminal shows\n%s\nand a file has\n%s", c.args, without, plain)
		}
		t.Setenv("NO_COLOR", "1")
		if got := e.onTerminal(c.args...); got != plain {
			t.Errorf("%v with NO_COLOR: %q", c.args, got)
		}
		t.Setenv("NO_COLOR", "")
		t.Setenv("TERM", "dumb")
		if got := e.onTerminal(c.args...); got != plain {
			t.Errorf("%v on a dumb terminal: %q", c.args, got)
		}
	}
	if got := e.onTerminal("ls", "-o", "json"); strings.Contains(got, "\x1b") {
		t.Errorf("JSON has colours: %q", got)
	}
}
