//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring runs a Prometheus server with the chart's monitors, rules and dashboards while simulated pods use GPUs.
package monitoring

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/test/e2e/e2etest"
	"gpu-dra-driver/test/e2e/env"
)

var must = e2etest.Must

// node is the cluster with pods that use GPUs.
type node struct {
	*prometheus
	// board is a GPU with partitions, busy one with a load; free has those of no pod. Another one has shares.
	board, busy, idle engine.GPU
	free              []engine.GPU
	// faulty is a time at which GPUs have all faults of checkAlerts.
	faulty time.Time
}

// start installs the driver with all that monitors it, loads GPUs and starts Prometheus.
func start(ctx context.Context, t *testing.T) *node {
	e, err := env.FromEnvironment(os.Stderr)
	must(t, err)
	data := filepath.Join(e.Tree, "test", "e2e", "monitoring", "testdata")
	_, err = e.Kubectl(ctx, "apply", "-f", filepath.Join(data, "operator.yaml"))
	must(t, err)
	_, err = e.Kubectl(ctx, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	must(t, err)
	must(t, e.Install(ctx, "hgx-h100", 8, "--set", "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboards.enabled=true",
		"--set", "cost.prices.NVIDIA H100 80GB HBM3=2"))
	rules, err := installedRules(ctx, e)
	must(t, err)
	text, err := yaml.Marshal(rules.short())
	must(t, err)
	n := &node{}
	n.prometheus, err = startPrometheus(ctx, e, t.TempDir(), text)
	must(t, err)
	t.Cleanup(n.stop)
	demos := filepath.Join(e.Tree, "demo")
	for _, file := range []string{
		filepath.Join(data, "pods.yaml"), filepath.Join(demos, "mig-four-of-one-gpu.yaml"), filepath.Join(demos, "fraction-compute.yaml"),
	} {
		_, err = e.Kubectl(ctx, "apply", "-f", file)
		must(t, err)
	}
	_, err = e.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=120s", "-n", "team-a", "pod/busy", "pod/idle")
	must(t, err)
	_, err = e.WaitPods(ctx, "demo-mig-four-of-one-gpu", 1)
	must(t, err)
	_, err = e.WaitPods(ctx, "demo-fraction-compute", 2)
	must(t, err)
	n.load(ctx, t)
	// The plugin reports reduced clocks after five minutes, which checkAlerts need not wait then.
	n.inject(ctx, t, "throttle", "thermal", n.busy.UUID)
	return n
}

// load finds the GPUs of the pods and runs processes on them.
func (n *node) load(ctx context.Context, t *testing.T) {
	holders := map[string]string{}
	must(t, n.Eventually(ctx, "Prometheus has the pods' devices", time.Minute, func(ctx context.Context) (bool, string) {
		found, err := n.query(ctx, `max by (gpu_uuid, claim_namespace, pod) (gpu_dra_claim_device_info{pod!=""})`)
		for _, s := range found {
			holders[s.Metric["gpu_uuid"]] = s.Metric["pod"]
		}
		return len(holders) == 4, fmt.Sprint(holders, err)
	}))
	state, err := engine.Open(n.Root, nil).State()
	must(t, err)
	for _, g := range state.GPUs {
		switch {
		case holders[g.UUID] == "busy":
			n.busy = g
		case holders[g.UUID] == "idle":
			n.idle = g
		case len(g.Instances) > 0:
			n.board = g
		case holders[g.UUID] == "":
			n.free = append(n.free, g)
		}
	}
	if len(n.free) != 4 {
		t.Fatalf("%d GPUs are free; holders are %v", len(n.free), holders)
	}
	n.inject(ctx, t, "process", n.busy.UUID, "--pid", "4000000", "--memory", "1024", "--load", "80")
	for i, part := range n.board.Instances {
		n.inject(ctx, t, "process", n.board.UUID, "--pid", fmt.Sprint(4000001+i), "--memory", fmt.Sprint(256*(i+1)), "--load", "40", "--gi", fmt.Sprint(part.ID))
	}
}

func (n *node) inject(ctx context.Context, t *testing.T, args ...string) {
	t.Helper()
	must(t, n.Sim(ctx, "inject", args...))
}

func TestMonitoring_PodsUseGPUs_QueriesHaveData(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Minute)
	defer cancel()
	n := start(ctx, t)
	t.Run("every query of dashboards and docs has data", func(t *testing.T) { n.checkQueries(ctx, t) })
	t.Run("pods add up to boards", func(t *testing.T) { n.checkSums(ctx, t) })
	t.Run("promtool accepts the metrics", func(t *testing.T) { n.checkMetrics(ctx, t) })
	t.Run("pods follow the utilization of their GPUs", func(t *testing.T) { n.checkAutoscaling(ctx, t) })
	t.Run("faults fire alerts", func(t *testing.T) { n.checkAlerts(ctx, t) })
	t.Run("dashboards draw every panel", func(t *testing.T) { n.checkPictures(ctx, t) })
	// PublishStale takes minutes, in which claims fire theirs.
	t.Run("slices are refused", func(t *testing.T) { n.refuseSlices(ctx, t) })
	t.Run("claims fire alerts", func(t *testing.T) { n.checkClaimAlerts(ctx, t) })
	t.Run("refused slices fire an alert", func(t *testing.T) { n.checkPublishAlert(ctx, t) })
	t.Run("partitions with holes fire an alert", func(t *testing.T) { n.checkFragmentation(ctx, t) })
	t.Run("plugins that never start fire an alert", func(t *testing.T) { n.checkPluginAlert(ctx, t) })
}

// neverSeen is the panel of failures that no case causes.
const neverSeen = "GPUs / Health: Failed preparations and releases in 10 minutes"

// empty lists queries without data while nothing fails. Prometheus must still answer them.
var empty = []string{
	// The plugin serves these counters from the first failure on.
	"GPUs / Health: GPUs with the most XIDs", "GPUs / Health: Health of GPUs over time", "GPUs / Health: Recovery actions of NVIDIA's driver", "GPUs / Health: GPUs that are not healthy", neverSeen, "GPUs / Health: Background errors in 10 minutes",
	// A GPU is hot only since a moment.
	"docs/metrics.md: Which GPUs are slowed down, and why?",
}

func (n *node) checkQueries(ctx context.Context, t *testing.T) {
	boards, err := installedDashboards(ctx, n.Env)
	must(t, err)
	questions, err := panels(boards)
	must(t, err)
	more, err := documented(n.Env, n.busy.UUID)
	must(t, err)
	questions = append(questions, more...)
	rules, err := installedRules(ctx, n.Env)
	must(t, err)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Record != "" {
				questions = append(questions, question{"rule " + r.Record, r.Record})
			}
		}
	}
	for _, q := range questions {
		if slices.Contains(empty, q.where) || strings.HasSuffix(q.where, ": variable cluster") { // The series of one cluster lack the label.
			_, err := n.query(ctx, q.query)
			must(t, err)
			continue
		}
		if err := n.Eventually(ctx, q.where, 90*time.Second, func(ctx context.Context) (bool, string) {
			found, err := n.query(ctx, q.query)
			return err == nil && len(found) > 0, fmt.Sprint(q.query, err)
		}); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d queries", len(questions))
}

// checkSums compares the sums over pods with those of the board.
func (n *node) checkSums(ctx context.Context, t *testing.T) {
	const boards = ` / sum(rate(gpu_dra_gpu_seconds_total{state="allocated"}[30s]))`
	for what, query := range map[string]string{
		"memory of partitions and of the board": `sum by (gpu_uuid) (gpu_dra_device_memory_used_bytes{type="mig"})
			/ on (gpu_uuid) gpu_dra_device_memory_used_bytes{type="gpu"}`,
		"memory of claims and of boards":        `sum(gpu_dra_claim_memory_used_bytes) / sum(gpu_dra_device_memory_used_bytes{type="gpu"})`,
		"seconds of claims and of boards":       `sum(rate(gpu_dra_claim_allocated_gpu_seconds_total[30s]))` + boards,
		"seconds of namespaces and of boards":   `sum(rate(gpu_dra_namespace_allocated_gpu_seconds_total[30s]))` + boards,
		"active seconds of a pod and its load":  `sum(rate(gpu_dra_claim_active_gpu_seconds_total{claim=~"busy-.*"}[30s])) / 0.8`,
		"occupied seconds of a pod and a clock": `sum(rate(gpu_dra_claim_occupied_seconds_total{claim=~"busy-.*"}[30s]))`,
		"states of each GPU and a clock":        `sum by (uuid) (rate(gpu_dra_gpu_seconds_total[30s]))`,
	} {
		if err := n.Eventually(ctx, what, 90*time.Second, func(ctx context.Context) (bool, string) {
			found, err := n.query(ctx, query)
			off := slices.ContainsFunc(found, func(s sample) bool {
				distance := math.Abs(s.value() - 1)
				return math.IsNaN(distance) || distance > .02
			})
			return err == nil && len(found) > 0 && !off, fmt.Sprint(found, err)
		}); err != nil {
			t.Error(err)
		}
	}
}

// checkMetrics passes scrapes of plugin and controller to promtool.
func (n *node) checkMetrics(ctx context.Context, t *testing.T) {
	targets, err := n.query(ctx, "up")
	must(t, err)
	for _, target := range targets {
		text, err := n.OnNode(ctx, "curl", "-sS", "--fail", "http://"+target.Metric["instance"]+"/metrics")
		must(t, err)
		check := exec.CommandContext(ctx, os.Getenv(toolProgram), "check", "metrics")
		check.Stdin = strings.NewReader(text)
		out, err := check.CombinedOutput()
		var failed *exec.ExitError
		if err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			t.Errorf("%s: %s", target.Metric["job"], line)
		}
		if err != nil && len(out) == 0 {
			t.Errorf("%s: promtool: %v", target.Metric["job"], err)
		}
		t.Logf("%s: %d lines", target.Metric["job"], strings.Count(text, "\n"))
	}
}
