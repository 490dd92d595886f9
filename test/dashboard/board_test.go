// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
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
		labels := map[string]string{"Time": "hidden", "claim_namespace": "<b>team-a</b>", "uuid": "GPU-1", "node": "node-1", "device": "gpu-0000-1b-00-0"}
		count, queries := map[string]int{}, 0
		for _, p := range b.Panels {
			count[p.Type]++
			if p.Type == graph {
				queries += len(p.Targets)
			}
		}
		html, empty := draw(t, b, func(query string, w Window, instant bool) ([]Series, error) {
			if strings.Contains(query, "$") {
				t.Errorf("%s: a variable is unresolved: %s", file, query)
			}
			if instant {
				return []Series{{labels, []Point{{Value: 2}}}}, nil
			}
			var points []Point
			for at := w.From; !at.After(w.To); at = at.Add(w.Step) {
				points = append(points, Point{float64(at.Unix()), 1})
			}
			return []Series{{labels, points}}, nil
		})
		for what, want := range map[string]int{"<polyline": queries, `<div class="number"`: count[number], "<table>": count[table], "<section": len(b.Panels)} {
			if got := strings.Count(html, what); got != want {
				t.Errorf("%s: the page has %s %d times, not %d; empty are %q", file, what, got, want, empty)
			}
		}
		if len(empty) > 0 || count[number] < 6 || (count[timeline] > 0) != strings.Contains(html, "node-1 gpu-0000-1b-00-0</text>") {
			t.Errorf("%s: empty are %q, panels %v", file, empty, count)
		}
		if strings.Contains(html, "<b>") || strings.Contains(html, "hidden</td>") {
			t.Errorf("%s: a name is not escaped, or an excluded column is shown:\n%s", file, html)
		}
		for _, p := range b.Panels {
			for _, transformed := range p.Transformations {
				for label := range transformed.Options.IndexByName {
					if title := p.title(label); title == label || labels[label] != "" && !strings.Contains(html, ">"+title+"</th>") {
						t.Errorf("%s: %s: the column %s has the title %s", file, p.Title, label, title)
					}
				}
			}
		}
	}
}

// TestPage_Timeline_ShowsWordsAndMergesEqualStates has a GPU that needs a reset for a while, with a gap of scrapes.
func TestPage_Timeline_ShowsWordsAndMergesEqualStates(t *testing.T) {
	p := Panel{Title: "health", Type: timeline, Targets: []Target{{LegendFormat: "{{node}}"}}}
	p.GridPos.W, p.GridPos.H = 24, 9
	p.FieldConfig.Defaults.Unit = "short"
	p.FieldConfig.Defaults.Mappings = []wording{{"value", map[string]word{"0": {"healthy", "green", 0}, "6": {"needs a reset", "red", 6}}}}
	html, _ := draw(t, &Board{Panels: []Panel{p}}, func(_ string, w Window, _ bool) ([]Series, error) {
		from := float64(w.From.Unix())
		return []Series{{map[string]string{"node": "n1"}, []Point{{from, 0}, {from + 60, 0}, {from + 120, 6}, {from + 180, 6}, {from + 240, 0}, {from + 480, 0}}}}, nil
	})
	if n := strings.Count(html, "<rect x="); n != 4 {
		t.Errorf("%d states, not 4", n)
	}
	for _, text := range []string{">needs a reset</text>", ">healthy</text>", "</svg>healthy</span> <span>", ">n1</text>"} {
		if !strings.Contains(html, text) {
			t.Errorf("the timeline lacks %q:\n%s", text, html)
		}
	}
}

// TestPage_Table_ShowsWordsWidthsAndHowManyRowsAreHidden has more rows than fit.
func TestPage_Table_ShowsWordsWidthsAndHowManyRowsAreHidden(t *testing.T) {
	text := `{"title": "b", "panels": [{"title": "p", "type": "table", "gridPos": {"w": 24, "h": 8},
		"fieldConfig": {"defaults": {"unit": "short"}, "overrides": [{"matcher": {"id": "byName", "options": "State"}, "properties": [
			{"id": "custom.width", "value": 77}, {"id": "custom.cellOptions", "value": {"type": "color-text"}},
			{"id": "mappings", "value": [{"type": "value", "options": {"reset": {"text": "needs a reset", "color": "red"}}}]}]}]},
		"targets": [{"instant": true, "format": "table"}],
		"transformations": [{"id": "organize", "options": {"excludeByName": {"Value": true}, "renameByName": {"state": "State"}}}]}]}`
	b, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for old, changed := range map[string]string{"byName": "byRegexp", "custom.width": "custom.align", "color-text": "gauge", `"red"`: `"teal"`, `"value", "options"`: `"range", "options"`} {
		wrong := strings.Replace(text, old, changed, 1)
		if _, err := Parse([]byte(wrong)); wrong == text || err == nil {
			t.Errorf("%s instead of %s is not an error", changed, old)
		}
	}
	html, _ := draw(t, b, func(string, Window, bool) (out []Series, err error) {
		for range 20 {
			out = append(out, Series{map[string]string{"state": "reset"}, []Point{{Value: 1}}})
		}
		return out, nil
	})
	cell := `<td style="color: ` + palette["red"] + `">needs a reset</td>`
	shown := strings.Count(html, cell)
	if !strings.Contains(html, `<th style="width: 77px">State</th>`) || shown < 4 || !strings.Contains(html, fmt.Sprintf("and %d more", 20-shown)) {
		t.Errorf("%d rows are shown:\n%s", shown, html)
	}
}

// TestPage_Number_HasColourOfItsThreshold draws a value below, at and above a threshold.
func TestPage_Number_HasColourOfItsThreshold(t *testing.T) {
	limit := 1.0
	for v, want := range map[float64]string{0: palette["green"], 1: palette["red"], 7: palette["red"]} {
		p := Panel{Title: "n", Type: number, Targets: []Target{{}}}
		p.FieldConfig.Defaults.Unit = currency
		p.FieldConfig.Defaults.Thresholds.Steps = []struct {
			Color string
			Value *float64
		}{{"green", nil}, {"red", &limit}}
		html, _ := draw(t, &Board{Panels: []Panel{p}}, func(_ string, w Window, _ bool) ([]Series, error) {
			return []Series{{nil, []Point{{float64(w.From.Unix()), 5}, {float64(w.To.Unix()), v}}}}, nil
		})
		if text := `color: ` + want + `">` + format(currency, v) + "<"; !strings.Contains(html, text) {
			t.Errorf("%g is not %q:\n%s", v, text, html)
		}
	}
}

// TestPictures_Documentation_ShowsTheShippedDashboards compares the JSON with that from which the pictures were drawn.
func TestPictures_Documentation_ShowsTheShippedDashboards(t *testing.T) {
	const dir = "../../docs/monitoring"
	sums, err := Sums(filepath.Dir(shipped))
	if err != nil {
		t.Fatal(err)
	}
	if drawn := read(t, filepath.Join(dir, SumsFile)); drawn != sums {
		t.Errorf("the pictures in docs/monitoring are older than the dashboards. Draw them again, and look at them: "+
			"make test-monitoring RUN='/(faults|draw)' FLAGS=-update\ndrawn:\n%snow:\n%s", drawn, sums)
	}
	for line := range strings.Lines(sums) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if _, err := os.Stat(filepath.Join(dir, strings.TrimSuffix(name, ".json")+".png")); err != nil {
			t.Error(err)
		}
	}
}

func TestParse_UnknownFieldTypeOrUnit_IsAnError(t *testing.T) {
	files, _ := filepath.Glob(shipped)
	text := read(t, files[0])
	for old, changed := range map[string]string{
		`"type": "table"`:       `"type": "gauge"`,
		`"type": "stat"`:        `"type": "table"`,
		`"color": "green"`:      `"color": "teal"`,
		`"mode": "absolute"`:    `"mode": "percentage"`,
		`"colorMode": "value"`:  `"colorMode": "background"`,
		`"unit": "percentunit"`: `"unit": "lightyear"`,
		`"min": 0,`:             `"max": 0,`,
		`"overrides": []`:       `"overrides": [{"matcher": {"id": "byName", "options": "Node"}, "properties": []}]`,
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
	b := &Board{Panels: []Panel{{Title: "lines", Type: graph, Targets: []Target{{}}}, {Title: "nothing", Type: graph, Targets: []Target{{Expr: "no"}}}}}
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
		{"binBps", 1 << 21, "2 MiB/s"}, {currency, 2.5, "$2.5"}, {currency, 3200, "$3.2K"},
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
