// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const shipped = "../../deployments/helm/gpu-dra-driver/monitoring/dashboards/*.json"

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func window() Window {
	to := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	return Window{From: to.Add(-10 * time.Minute), To: to, Step: time.Minute, RateInterval: 30 * time.Second}
}

func draw(t *testing.T, b *Board, ask Ask) (string, []string) {
	t.Helper()
	var out strings.Builder
	empty, err := b.Page(&out, window(), ask)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), empty
}

func TestPage_ShippedDashboards_DrawEveryPanel(t *testing.T) {
	files, err := filepath.Glob(shipped)
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := Parse([]byte(read(t, file)))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		graphs, labels := 0, map[string]string{"Time": "hidden", "claim_namespace": "<b>team-a</b>", "uuid": "GPU-1"}
		values := 0
		for _, p := range b.Panels {
			if p.Type == "table" && !p.excludes("Value") {
				values++
			}
		}
		html, empty := draw(t, b, func(query string, w Window, instant bool) ([]Series, error) {
			if strings.Contains(query, "$") {
				t.Errorf("%s: a variable is unresolved: %s", file, query)
			}
			if instant {
				return []Series{{labels, []Point{{Value: 2}}}}, nil
			}
			graphs++
			var points []Point
			for at := w.From; !at.After(w.To); at = at.Add(w.Step) {
				points = append(points, Point{float64(at.Unix()), .25})
			}
			return []Series{{labels, points}}, nil
		})
		if len(empty) > 0 || graphs == 0 || strings.Count(html, "<polyline") != graphs {
			t.Errorf("%s: %d graphs have %d lines; empty are %q", file, graphs, strings.Count(html, "<polyline"), empty)
		}
		if strings.Count(html, "<th>Value</th>") != values {
			t.Errorf("%s: not %d tables have values", file, values)
		}
		if strings.Count(html, "<section") != len(b.Panels) || strings.Contains(html, "<b>") || strings.Contains(html, "hidden</td>") {
			t.Errorf("%s: a panel is missing, a name is not escaped or an excluded column is shown:\n%s", file, html)
		}
	}
}

func TestParse_UnknownFieldTypeOrUnit_IsAnError(t *testing.T) {
	files, _ := filepath.Glob(shipped)
	text := read(t, files[0])
	for old, changed := range map[string]string{
		`"type": "table"`:       `"type": "stat"`,
		`"unit": "percentunit"`: `"unit": "lightyear"`,
		`"min": 0,`:             `"max": 0,`,
		`"overrides": []`:       `"overrides": [{"matcher": {"id": "byName"}}]`,
		`"format": "table",`:    ``,
		`"id": "organize"`:      `"id": "merge"`,
		`"value": "$__all"`:     `"value": "team-a"`,
	} {
		wrong := strings.Replace(text, old, changed, 1)
		if _, err := Parse([]byte(wrong)); wrong == text || err == nil {
			t.Errorf("%s instead of %s is not an error", changed, old)
		}
	}
}

func TestPage_GapsAndNaN_BreakLines(t *testing.T) {
	b := &Board{Panels: []Panel{{Title: "lines", Type: "timeseries", Targets: []Target{{}}}, {Title: "nothing", Type: "timeseries", Targets: []Target{{Expr: "no"}}}}}
	b.Panels[0].FieldConfig.Defaults.Unit = "short"
	html, empty := draw(t, b, func(query string, w Window, _ bool) ([]Series, error) {
		from := float64(w.From.Unix())
		points := []Point{{from, 1}, {from + 60, 2}, {from + 120, math.NaN()}, {from + 180, 3}, {from + 240, 1}, {from + 420, 2}}
		if query == "no" {
			points = points[2:3]
		}
		return []Series{{nil, points}}, nil
	})
	if strings.Count(html, "<polyline") != 2 || strings.Count(html, "<circle") != 1 || !slices.Equal(empty, []string{"nothing"}) {
		t.Errorf("not two lines and a dot in one panel, and none in the other: %q\n%s", empty, html)
	}
}

func TestFormat_Units_HaveMultiples(t *testing.T) {
	for _, c := range []struct {
		unit  string
		value float64
		want  string
	}{
		{"short", 3, "3"}, {"short", 1500, "1.5 K"}, {"percentunit", .255, "25.5%"}, {"bytes", 80 * 1 << 30, "80 GiB"}, {"bytes", 0, "0 B"},
		{"s", .0042, "4.2 ms"}, {"s", 90, "1.5 min"}, {"watt", 1234, "1.23 kW"}, {"celsius", 41, "41 °C"}, {"none", 0.0123456, "0.0123"},
		{"binBps", 1 << 21, "2 MiB/s"},
	} {
		if got := format(c.unit, c.value); got != c.want {
			t.Errorf("%g %s is %q, not %q", c.value, c.unit, got, c.want)
		}
	}
	if values, labels := ticks("percentunit", 0, .8); values[len(values)-1] < .8 || labels[0] != "0%" || len(labels) > 6 {
		t.Errorf("ticks up to 80 %% are %q", labels)
	}
	if values, _ := ticks("short", 0, 0); len(values) < 2 {
		t.Errorf("a graph of zeros has the ticks %v", values)
	}
}
