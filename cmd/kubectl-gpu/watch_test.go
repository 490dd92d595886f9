// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// seen is the output of a terminal. Each text that appears in it for the first time is answered with keys.
type seen struct {
	mu      sync.Mutex
	all     bytes.Buffer
	answers []answer
	keys    io.Writer
}

type answer struct{ text, keys string }

func (s *seen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Write(p)
	for len(s.answers) > 0 && strings.Contains(s.all.String(), s.answers[0].text) {
		keys := s.answers[0].keys
		s.answers = s.answers[1:]
		go func() { _, _ = io.WriteString(s.keys, keys) }() // The program reads it after this write.
	}
	return len(p), nil
}

// TestWatch_Screen_ShowsUseUntilTheUserLeaves sorts the GPUs once they are shown, and leaves once they are sorted.
func TestWatch_Screen_ShowsUseUntilTheUserLeaves(t *testing.T) {
	e := start(t, map[string]string{"n1": "hgx-h100"}, claim("team-a", "train-0", device("n1", "gpu-0000-1b-00-0")))
	e.lists[podsPath] = corev1.PodList{Items: []corev1.Pod{driverPod("plugin", "kubelet-plugin", "plugin:1")}}
	e.metrics("plugin", measurements)
	in, keys := io.Pipe()
	out := &seen{keys: keys, answers: []answer{{"team-a/train-0", "s"}, {"utilization", "q"}}}
	f := newFactory(genericiooptions.IOStreams{In: in, Out: out, ErrOut: io.Discard})
	f.config.KubeConfig, f.driver = &e.kubeconfig, "gpu.nvidia.com"
	w := &watching{factory: f, interval: time.Hour, measured: true}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.draw(ctx, tea.WithWindowSize(110, 12)); err != nil || ctx.Err() != nil {
		t.Fatal(err, ctx.Err())
	}
	for _, want := range []string{"1 of 2 GPUs free", "█", "62%"} {
		if !strings.Contains(out.all.String(), want) {
			t.Errorf("the output lacks %q: %q", want, out.all.String())
		}
	}
}

func TestWatch_NoTerminal_SaysSo(t *testing.T) {
	e := start(t, nil)
	for _, command := range []string{"ls", "top"} {
		if code, out, errOut := e.kubectl(command, "-w"); code != 2 || out != "" || !strings.Contains(errOut, "--watch needs a terminal") {
			t.Errorf("%s: exit code %d, %q, %q", command, code, out, errOut)
		}
	}
}
