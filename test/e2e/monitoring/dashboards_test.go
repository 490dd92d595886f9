//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gpu-dra-driver/test/dashboard"
	"gpu-dra-driver/test/e2e/env"
)

// question is a query, with its place for failures.
type question struct{ where, query string }

// installedDashboards returns the dashboards of the cluster, by UID.
func installedDashboards(ctx context.Context, e *env.Env) (out []*dashboard.Board, err error) {
	text, err := e.Kubectl(ctx, "get", "configmaps", "-n", env.Namespace, "-l", "grafana_dashboard=1", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct{ Data map[string]string }
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	for _, item := range list.Items {
		for _, data := range item.Data {
			b, err := dashboard.Parse([]byte(data))
			if err != nil {
				return nil, err
			}
			out = append(out, b)
		}
	}
	if len(out) < 5 {
		return nil, fmt.Errorf("%d dashboards are installed", len(out))
	}
	slices.SortFunc(out, func(a, b *dashboard.Board) int { return strings.Compare(a.UID, b.UID) })
	return out, nil
}

// panels returns the queries of dashboards, as Grafana asks them.
func panels(boards []*dashboard.Board) (out []question, err error) {
	for _, b := range boards {
		for _, v := range b.Templating.List {
			if v.Type == "query" {
				metric, label, err := v.Values()
				if err != nil {
					return nil, err
				}
				out = append(out, question{b.Title + ": variable " + v.Name, metric + "{" + label + `!=""}`})
			}
		}
		for _, p := range b.Panels {
			for _, target := range p.Targets {
				out = append(out, question{b.Title + ": " + p.Title, b.Resolve(target, rateInterval.String(), "5m")})
			}
		}
	}
	return out, nil
}

var (
	blocks = regexp.MustCompile("(?s)```promql\n(.*?)```")
	// cells are rows of tables that end with a query.
	cells = regexp.MustCompile("(?m)^\\| ([^|]*) \\| (?:[^|]* \\| )?`([^`|]+)` \\|$")
)

// documented returns the queries of docs/, about a GPU.
func documented(e *env.Env, uuid string) (out []question, err error) {
	for _, name := range []string{"metrics.md", "cost.md"} {
		data, err := os.ReadFile(filepath.Join(e.Tree, "docs", name))
		if err != nil {
			return nil, err
		}
		before := len(out)
		add := func(what, query string) {
			out = append(out, question{"docs/" + name + ": " + what, strings.ReplaceAll(query, "GPU-…", uuid)})
		}
		for i, block := range blocks.FindAllStringSubmatch(string(data), -1) {
			add(fmt.Sprint("block ", i+1), block[1])
		}
		for _, row := range cells.FindAllStringSubmatch(string(data), -1) {
			add(row[1], row[2])
		}
		if len(out)-before < 7 {
			return nil, fmt.Errorf("docs/%s has %d queries: the search is broken", name, len(out)-before)
		}
	}
	return out, nil
}
