// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpu-dra-driver/pkg/gpu/health"
)

// TestConditions_EveryState_HasOne also compares the recovery actions with the documented numbers.
func TestConditions_EveryState_HasOne(t *testing.T) {
	var all []string
	for _, c := range conditions {
		all = append(all, c.states...)
	}
	want := []string{"healthy", "unmonitored", "unreadable"}
	for _, s := range slices.Concat(health.States, health.Advices) {
		want = append(want, s.Name)
	}
	slices.Sort(all)
	slices.Sort(want)
	if !slices.Equal(all, want) {
		t.Errorf("conditions have the states\n%q\nand GPUs\n%q", all, want)
	}
	for i, a := range actions {
		if a.value != strconv.Itoa(i) {
			t.Errorf("action %s is at place %d", a.value, i)
		}
	}
}

func TestInCluster_Queries_SelectEachMetric(t *testing.T) {
	for expr, want := range map[string]string{
		`sum(gpu_dra_cluster_nodes)`: `sum(gpu_dra_cluster_nodes{cluster=~"$cluster"})`,
		`rate(nvidia_dra_requests_total{operation="prepare"}[5m]) / gpu_dra_x`: `rate(nvidia_dra_requests_total{cluster=~"$cluster", operation="prepare"}[5m]) / gpu_dra_x{cluster=~"$cluster"}`,
	} {
		if got := inCluster(expr); got != want {
			t.Errorf("%s became %s", expr, got)
		}
	}
}

// TestGrafana_Boards_BeginWithNumbersAndDoNotOverlap looks at the places of all panels.
func TestGrafana_Boards_BeginWithNumbersAndDoNotOverlap(t *testing.T) {
	for _, d := range dashboards {
		data, err := json.Marshal(d.grafana())
		if err != nil {
			t.Fatal(err)
		}
		var board struct {
			Panels []struct {
				Title, Type string
				GridPos     struct{ X, Y, W, H int }
				Targets     []struct{ Expr string }
			}
		}
		if err := json.Unmarshal(data, &board); err != nil {
			t.Fatal(err)
		}
		taken := map[[2]int]string{}
		for _, p := range board.Panels {
			if (p.GridPos.Y == 0) != (p.Type == "stat") {
				t.Errorf("%s: %s is a %s in row %d", d.title, p.Title, p.Type, p.GridPos.Y)
			}
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
						t.Errorf("%s: %s is at the place of %q", d.title, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			for _, q := range p.Targets {
				if strings.Count(q.Expr, "cluster=~") == 0 {
					t.Errorf("%s: %s ignores the cluster", d.title, p.Title)
				}
			}
		}
	}
}

func TestWrite_Directory_HasEveryDashboard(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != len(dashboards) {
		t.Errorf("%v: %d files", err, len(files))
	}
}
