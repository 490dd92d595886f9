// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the chart's rules and dashboards: each query parses, and asks for metrics and labels that the
// driver has.
package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const (
	chart     = "../../deployments/helm/gpu-dra-driver/monitoring"
	reference = "../../docs/reference/metrics.md"
)

// targetLabels are the labels that Prometheus adds to each series, that of buckets, and that of a Prometheus of several clusters.
var targetLabels = []string{"instance", "job", "le", "cluster"}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// metrics returns the labels of each metric in the generated reference.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{"up": {}}
	for line := range strings.Lines(read(t, reference)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		name, labels := strings.Trim(cells[1], " `"), []string{}
		for label := range strings.SplitSeq(cells[3], ",") {
			if label = strings.Trim(label, " `"); label != "" {
				labels = append(labels, label)
			}
		}
		out[name] = labels
		if strings.TrimSpace(cells[2]) == "histogram" {
			out[name+"_bucket"], out[name+"_sum"], out[name+"_count"] = labels, labels, labels
		}
	}
	if len(out) < 20 {
		t.Fatalf("%s has %d metrics: the search is broken", reference, len(out))
	}
	return out
}

type rule struct {
	Record, Alert, Expr string
	Annotations         map[string]string
}

func rules(t *testing.T) (out []rule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(chart, "rules.yaml"))), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

// checkQuery checks a query's names.
func checkQuery(t *testing.T, where, query string, known map[string][]string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %s: %v", where, query, err)
		return
	}
	labels, selectors := slices.Clone(targetLabels), 0
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		selectors++
		has, ok := known[s.Name]
		if !ok {
			t.Errorf("%s: %s: the driver has no metric %s", where, query, s.Name)
		}
		labels = append(labels, has...)
		for _, m := range s.LabelMatchers {
			if m.Name != "__name__" && !slices.Contains(has, m.Name) && !slices.Contains(targetLabels, m.Name) {
				t.Errorf("%s: %s: %s has no label %s", where, query, s.Name, m.Name)
			}
		}
		return nil
	})
	if selectors == 0 {
		t.Errorf("%s: %s: asks for no metric", where, query)
	}
	check := func(names []string) {
		for _, name := range names {
			if !slices.Contains(labels, name) {
				t.Errorf("%s: %s: no metric of it has the label %s", where, query, name)
			}
		}
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if call, ok := n.(*parser.Call); ok && call.Func.Name == "label_join" {
			if made, ok := call.Args[1].(*parser.StringLiteral); ok {
				labels = append(labels, made.Val)
			}
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch e := n.(type) {
		case *parser.AggregateExpr:
			check(e.Grouping)
		case *parser.BinaryExpr:
			if e.VectorMatching != nil {
				check(e.VectorMatching.MatchingLabels)
			}
		}
		return nil
	})
}

func TestRules_Queries_AskForKnownMetrics(t *testing.T) {
	known := metrics(t)
	for _, r := range rules(t) {
		if r.Record != "" {
			// The name of a recorded series begins with its labels.
			level, _, _ := strings.Cut(r.Record, ":")
			known[r.Record] = strings.Split(strings.Replace(level, "namespace", "claim.namespace", 1), "_")
			known[r.Record][0] = strings.Replace(known[r.Record][0], ".", "_", 1)
		}
	}
	for _, r := range rules(t) {
		checkQuery(t, r.Record+r.Alert, r.Expr, known)
	}
}

func TestRules_Alerts_HaveRunbookAndUnitTest(t *testing.T) {
	tests, runbook := read(t, "testdata/alerts_test.yaml"), read(t, "../../docs/alerts.md")
	for _, r := range rules(t) {
		if r.Record != "" {
			if !strings.Contains(tests, "expr: "+r.Record) {
				t.Errorf("%s has no unit test", r.Record)
			}
			continue
		}
		if !strings.Contains(tests, "alertname: "+r.Alert+"\n") || !strings.Contains(tests, "{alertname: "+r.Alert+", eval_time") {
			t.Errorf("%s has no unit test in which it fires, or none in which it does not", r.Alert)
		}
		if want := "docs/alerts.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want || !strings.Contains(runbook, "\n## "+r.Alert+"\n") {
			t.Errorf("%s has no section in docs/alerts.md, or not the annotation runbook: %s", r.Alert, want)
		}
	}
}

type panel struct {
	Title   string
	Targets []struct{ Expr string }
}

type dashboard struct {
	file       string
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []panel
}

func dashboards(t *testing.T) (out []dashboard) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "dashboards", "*.json"))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		board := dashboard{file: file}
		if err := json.Unmarshal([]byte(read(t, file)), &board); err != nil {
			t.Fatal(err)
		}
		out = append(out, board)
	}
	return out
}

func TestDashboards_Queries_AskForKnownMetrics(t *testing.T) {
	known := metrics(t)
	for _, board := range dashboards(t) {
		variables := []string{"$__rate_interval", "5m", "$__range", "3h"}
		for _, v := range board.Templating.List {
			variables = append(variables, "$"+v.Name, ".*")
			if q, ok := v.Query.(map[string]any); ok && v.Type == "query" {
				text, _ := q["query"].(string)
				metric, label, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(text, "label_values("), ")"), ", ")
				if !slices.Contains(append(known[metric], targetLabels...), label) {
					t.Errorf("%s: variable %s: %s", board.file, v.Name, text)
				}
			}
		}
		for _, p := range board.Panels {
			if len(p.Targets) == 0 {
				t.Errorf("%s: %s has no query", board.file, p.Title)
			}
			for _, target := range p.Targets {
				checkQuery(t, p.Title, strings.NewReplacer(variables...).Replace(target.Expr), known)
			}
		}
	}
}

// TestDashboards_Measurements_AreShown asks for a panel for each measurement.
func TestDashboards_Measurements_AreShown(t *testing.T) {
	elsewhere := []string{"gpu_dra_device_clock_hertz", "gpu_dra_device_energy_joules_total", "gpu_dra_device_processes", "gpu_dra_device_plugin_gpus"}
	var shown strings.Builder
	for _, board := range dashboards(t) {
		for _, p := range board.Panels {
			for _, target := range p.Targets {
				shown.WriteString(target.Expr + "\n")
			}
		}
	}
	for name := range metrics(t) {
		if !strings.HasPrefix(name, "gpu_dra_device_") && !strings.HasPrefix(name, "gpu_dra_claim_") && name != "gpu_dra_xid_errors_total" {
			continue
		}
		if strings.Contains(shown.String(), name) == slices.Contains(elsewhere, name) {
			t.Errorf("%s: no panel shows it, or one that this test does not expect", name)
		}
	}
}

// allOf chooses all values of variables, as the unit tests of promtool do.
var allOf = strings.NewReplacer("$node", ".*", "$cluster", ".*", "$__range", "10m", "$__rate_interval", "1m")

// TestDashboards_UnitTestsOfPromtool_HaveThePanelsQueries compares the queries that promtool runs. They are about records that two
// plugins of a node serve, more series than a graph shows, faults that no GPU has, and lost GPUs.
func TestDashboards_UnitTestsOfPromtool_HaveThePanelsQueries(t *testing.T) {
	tests := read(t, "testdata/alerts_test.yaml")
	tested := []string{"Prepared devices", "Prepared devices by type", "Temperature of GPUs", "Replaced rows of the memory", "Unhealthy GPUs"}
	for _, board := range dashboards(t) {
		for _, p := range board.Panels {
			at := slices.Index(tested, p.Title)
			if at < 0 {
				continue
			}
			tested = slices.Delete(tested, at, at+1)
			for _, target := range p.Targets {
				if query := allOf.Replace(target.Expr); !strings.Contains(tests, "- expr: "+query+"\n") && !strings.Contains(tests, "- expr: '"+query+"'\n") {
					t.Errorf("%s has no unit test: %s", p.Title, query)
				}
			}
		}
	}
	if len(tested) > 0 {
		t.Errorf("no panels are %q", tested)
	}
}

// TestDashboards_FirstEvent_Counts: a series of events begins with the first of them, which increase() does not count. The
// unit tests of promtool run the query of XIDs.
func TestDashboards_FirstEvent_Counts(t *testing.T) {
	tests, found := read(t, "testdata/alerts_test.yaml"), false
	for _, board := range dashboards(t) {
		for _, p := range board.Panels {
			for _, target := range p.Targets {
				if strings.Contains(target.Expr, "increase(") && strings.Contains(target.Expr, "_errors_total") {
					t.Errorf("%s does not count the first event: %s", p.Title, target.Expr)
				}
				if strings.Contains(target.Expr, "gpu_dra_xid_errors_total") {
					found = true
					if !strings.Contains(tests, "- expr: "+allOf.Replace(target.Expr)+"\n") {
						t.Errorf("%s has no unit test: %s", p.Title, target.Expr)
					}
				}
			}
		}
	}
	if !found {
		t.Error("no panel has XIDs")
	}
}
