//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package recording records the session of the README on the one-machine Kubernetes.
package recording

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
	"gpu-dra-driver/test/recording"
)

var cluster *env.Env

func TestMain(m *testing.M) {
	e2etest.Main(m, func(ctx context.Context, c *env.Env) error {
		cluster = c
		// A plan of `kubectl gpu pack` moves pods to published devices only.
		return c.Install(ctx, "hgx-h100", 8, "--set-json", "publish=[]")
	})
}

var must = e2etest.Must

var update = flag.Bool("update", false, "record the session of the README again")

// storyPath is the checked-in recording, without the ends of its files.
const storyPath = "docs/recording/pod-waits"

// story is the session that the README shows: a pod waits, `kubectl gpu why` says why, and `kubectl gpu pack` makes room.
var story = []recording.Line{
	{Text: "# Eight H100: one is held as a whole, another one is cut for a small pod."},
	{Text: "kubectl gpu layout", Pause: 4 * time.Second},
	{Text: "# The next pod wants four GPUs that NVLink connects.", Clear: true},
	{Text: "kubectl apply -f train.yaml", Pause: time.Second / 2},
	{Text: "kubectl get pods", Pause: 3 * time.Second / 2},
	{Text: "kubectl gpu why train", Pause: 6 * time.Second, Poster: true, Before: groupsPublished},
	{Text: "# Does the small pod fit elsewhere?", Clear: true},
	{Text: "kubectl gpu pack train", Pause: 5 * time.Second},
	{Text: "# It does. Run these commands:"},
	{Text: "kubectl gpu pack train | grep '^  kubectl' | sh", Pause: time.Second},
	{Text: "kubectl wait --for=condition=Ready pod/train && kubectl get pods", Pause: 5 * time.Second / 2},
	{Text: "kubectl gpu layout", Clear: true, Pause: 5 * time.Second},
}

// groupsPublished waits until the node publishes the groups that the pod asks for: `kubectl gpu why` has another answer before.
func groupsPublished(ctx context.Context) error {
	return cluster.Eventually(ctx, "groups of four GPUs", 30*time.Second, func(ctx context.Context) (bool, string) {
		devices, err := cluster.Devices(ctx, "nvlink-group")
		return slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return strings.HasPrefix(d.Name, "nvlink-4-") }),
			fmt.Sprintf("%d groups, %v", len(devices), err)
	})
}

// TestRecording_PodWaits_CommandsPrintWhatTheRecordingShows types the commands of the README's recording into a shell on a terminal.
// With -update it writes the recording and its picture.
func TestRecording_PodWaits_CommandsPrintWhatTheRecordingShows(t *testing.T) {
	ctx := e2etest.Context(t, 6*time.Minute)
	demos, err := cluster.Demos()
	must(t, err)
	demo := demos[slices.IndexFunc(demos, func(d env.Demo) bool { return d.Name == "pack" })]
	must(t, cluster.Apply(ctx, demo))
	t.Cleanup(func() { must(t, cluster.Remove(context.WithoutCancel(ctx), demo)) })
	_, err = cluster.WaitSettled(ctx, demo)
	must(t, err)
	config, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	must(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, config, 0o600))
	_, err = cluster.Kubectl(ctx, "--kubeconfig", kubeconfig, "config", "set-context", "--current", "--namespace=demo-pack")
	must(t, err)
	got, err := recording.Record(ctx, recording.Options{
		Width: 100, Height: 26, Title: "A pod waits for four GPUs. kubectl gpu says why, and makes room.",
		Dir: filepath.Join(cluster.Tree, "demo", "pack"),
		Env: []string{
			"PATH=" + filepath.Join(cluster.Tree, "bin") + ":" + filepath.Dir(cluster.KubectlPath) + ":" + os.Getenv("PATH"),
			"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir(),
		},
	}, story)
	must(t, err)
	path := filepath.Join(cluster.Tree, storyPath)
	if *update {
		write(t, got, path)
	}
	file, err := os.Open(path + ".cast")
	must(t, err)
	defer func() { _ = file.Close() }()
	want, err := recording.Read(file)
	must(t, err)
	if diff := cmp.Diff(shape(t, want), shape(t, got)); diff != "" {
		t.Errorf("the recording shows other output (-recording +now); record it again: make test-e2e RUN=TestRecording FLAGS=-update\n%s", diff)
	}
}

func write(t *testing.T, c recording.Cast, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	var text strings.Builder
	must(t, c.Write(&text))
	must(t, os.WriteFile(path+".cast", []byte(text.String()), 0o644))
	picture, err := c.Draw()
	must(t, err)
	must(t, os.WriteFile(path+".svg", []byte(picture), 0o644))
}

// varying are the parts of the output that differ between two runs: random ends of names, ages and versions.
var varying = regexp.MustCompile(`(small|train|holder|gpu)(-[0-9a-z]{5,10})+\b|\b\d+ ?(s|min|m)(\d+s)?\b|v?1\.\d\d\.\d+`)

// shape returns the screens without varying parts, line breaks of the terminal and widths of columns.
func shape(t *testing.T, c recording.Cast) []string {
	t.Helper()
	screens, err := c.Screens()
	must(t, err)
	for i, text := range screens {
		joined := ""
		for line := range strings.Lines(text) {
			if joined += strings.TrimSuffix(line, "\n"); utf8.RuneCountInString(line) <= c.Width {
				joined += " " // The line was not broken by the terminal.
			}
		}
		joined = strings.ReplaceAll(joined, ", idle)", ")") // Said once the plugin has measured the pod.
		screens[i] = strings.Join(strings.Fields(varying.ReplaceAllString(joined, "$1…")), " ")
	}
	return screens
}
