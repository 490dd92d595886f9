// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Series is a result of a query. An instant query has one point for each series.
type Series struct {
	Labels map[string]string
	Points []Point
}

// Point is a value at a time in seconds since 1970.
type Point struct{ Time, Value float64 }

// Window is the time range of a page, and the distance of the points of a graph.
type Window struct {
	From, To           time.Time
	Step, RateInterval time.Duration
}

// Ask runs a query over a window, or at its end.
type Ask func(query string, w Window, instant bool) ([]Series, error)

// Sizes of the page in pixels.
const (
	width, rowHeight, gap, titles = 1200, 26, 8, 44
	header, legendRow, axis, left = 26, 17, 18, 70
	legendRows                    = 3
	// mark and letter are the estimated widths of a legend's mark and of a letter.
	mark, letter = 26, 6.3
	// tableRow is the height of a row of a table.
	tableRow = 21
)

// Size returns the width and the height of the page in pixels.
func (b *Board) Size() (int, int) {
	rows := 0
	for _, p := range b.Panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	return width, titles + rows*rowHeight + gap
}

// palette has Grafana's named colours, as a light page shows them.
var palette = map[string]string{
	"text": "#24292e", "green": "#37872D", "yellow": "#d6a500", "orange": "#FF780A", "red": "#E02F44", "purple": "#A352CC",
	"light-orange": "#FFB357", "dark-orange": "#FA6400", "light-red": "#FF7383", "dark-red": "#AD0317",
}

// colors are the first of Grafana's classic palette.
var colors = []string{
	"#7EB26D", "#EAB839", "#6ED0E0", "#EF843C", "#E24D42", "#1F78C1", "#BA43A9", "#705DA0", "#508642", "#CCA300", "#447EBC", "#C15C17",
	"#890F02", "#0A437C", "#6D1F62", "#584477",
}

type (
	line struct {
		Color, Name string
		Paths       []string
		Dots        [][2]string
	}
	tick struct{ At, Text string }
	// band is a series of a timeline, with its states from left to right.
	band struct {
		Name, Top, Height, Middle string
		States                    []state
	}
	state struct{ Left, Width, Color, Text string }
	// head is the title of a column, and its width in pixels if it is not 0. entry is a value with its colour.
	head struct {
		Title string
		Width int
	}
	entry struct{ Text, Color string }
	// box is a panel with the places of its parts in pixels.
	box struct {
		Panel
		Left, Top, Width, Height             int
		PlotLeft, PlotWidth, PlotHeight, Low int
		Across, Down                         []tick
		Lines, Legend                        []line
		Limits                               []line
		More                                 int
		Columns                              []head
		Rows                                 [][]entry
		// A number has Value and Area, a timeline Bands.
		Value, Color, Area string
		Bands              []band
		Empty              bool
	}
)

// Page writes the dashboard as HTML with data of a window, and returns the titles of the panels without data.
func (b *Board) Page(w io.Writer, window Window, ask Ask) (empty []string, err error) {
	view := struct {
		*Board
		From, To string
		Boxes    []box
	}{Board: b, From: window.From.UTC().Format("15:04"), To: window.To.UTC().Format("15:04")}
	for _, p := range b.Panels {
		x := box{Panel: p, PlotLeft: left}
		x.Left, x.Top = p.GridPos.X*(width-gap)/24+gap, titles+p.GridPos.Y*rowHeight
		x.Width, x.Height = p.GridPos.W*(width-gap)/24-gap, p.GridPos.H*rowHeight-gap
		var lines []named
		for _, t := range p.Targets {
			found, err := ask(b.Resolve(t, seconds(window.RateInterval), seconds(window.To.Sub(window.From))), window, t.Instant)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", b.Title, p.Title, err)
			}
			for _, s := range found {
				lines = append(lines, named{t.legend(s.Labels), s})
			}
		}
		lines = slices.DeleteFunc(lines, func(n named) bool { return !slices.ContainsFunc(n.Points, Point.finite) })
		switch {
		case len(lines) == 0:
			x.Empty, empty = true, append(empty, p.Title)
		case p.Type == table:
			x.table(lines)
		case p.Type == number:
			x.number(lines[0], window)
		case p.Type == timeline:
			x.timeline(lines, window)
		default:
			x.graph(lines, window)
		}
		view.Boxes = append(view.Boxes, x)
	}
	return empty, page.Execute(w, view)
}

// named is a series with its entry in the legend.
type named struct {
	name string
	Series
}

func (p Point) finite() bool { return !math.IsNaN(p.Value) && !math.IsInf(p.Value, 0) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.0fs", d.Seconds()) }

// value is Grafana's name for the column of a table's values.
const value = "Value"

// table shows as many rows as there is place for, and counts the others, which Grafana has behind a scroll bar.
func (x *box) table(rows []named) {
	columns := x.columns(rows)
	if fit := (x.Height - header) / tableRow; len(rows)+1 > fit {
		x.More = len(rows) - (fit - 2)
		rows = rows[:fit-2]
	}
	for _, r := range rows {
		var cells []entry
		for _, c := range columns {
			e := entry{Text: r.Labels[c]}
			if c == value {
				e.Text = format(x.FieldConfig.Defaults.Unit, r.Points[0].Value)
			}
			if w, ok := inWords(x.column(x.title(c)).words, e.Text); ok {
				e = entry{w.Text, palette[w.Color]}
			}
			cells = append(cells, e)
		}
		x.Rows = append(x.Rows, cells)
	}
	for _, c := range columns {
		x.Columns = append(x.Columns, head{x.title(c), x.column(x.title(c)).width})
	}
}

// number shows the last value, over its past as an area.
func (x *box) number(n named, w Window) {
	var points []Point
	high := 0.0
	for _, p := range n.Points {
		if p.finite() {
			points, high = append(points, p), max(high, p.Value)
		}
	}
	last := points[len(points)-1].Value
	x.Value, x.Color = format(x.FieldConfig.Defaults.Unit, last), x.FieldConfig.Defaults.colour(last)
	const height = 22
	from, to := float64(w.From.Unix()), float64(w.To.Unix())
	x.PlotWidth, x.PlotHeight = x.Width-2, height
	across := func(t float64) string { return pixels((t - from) / (to - from) * float64(x.PlotWidth)) }
	var area strings.Builder
	fmt.Fprintf(&area, "%s,%d ", across(points[0].Time), height)
	for _, p := range points {
		fmt.Fprintf(&area, "%s,%s ", across(p.Time), pixels(height*(1-p.Value/max(high, 1e-9))))
	}
	fmt.Fprintf(&area, "%s,%d", across(points[len(points)-1].Time), height)
	x.Area = area.String()
}

// timeline draws a band for each series. Equal neighbours are one state.
func (x *box) timeline(lines []named, w Window) {
	const names, legend = 220, legendRow
	d := x.FieldConfig.Defaults
	x.PlotLeft, x.PlotWidth = names, x.Width-names-3*gap
	x.PlotHeight = x.Height - header - gap - axis - legend
	x.Low = x.PlotHeight + axis - 4
	x.times(w)
	step := float64(x.PlotHeight) / float64(len(lines))
	from, to := float64(w.From.Unix()), float64(w.To.Unix())
	across := func(t float64) float64 { return names + (t-from)/(to-from)*float64(x.PlotWidth) }
	seen := map[string]line{}
	for i, l := range lines {
		b := band{Name: l.name, Top: pixels(float64(i)*step + step*.08), Height: pixels(step * .84), Middle: pixels(float64(i)*step + step/2)}
		for at := 0; at < len(l.Points); {
			end := at
			for end < len(l.Points) && l.Points[end].Value == l.Points[at].Value && (end == at || l.Points[end].Time-l.Points[end-1].Time <= 1.5*w.Step.Seconds()) {
				end++
			}
			left := across(l.Points[at].Time)
			right := min(across(l.Points[end-1].Time+w.Step.Seconds()), across(to))
			s := state{Left: pixels(left), Width: pixels(right - left), Color: d.colour(l.Points[at].Value), Text: format(d.Unit, l.Points[at].Value)}
			if known, ok := d.word(l.Points[at].Value); ok {
				s.Color, s.Text = palette[known.Color], known.Text
				seen[fmt.Sprintf("%03d", known.Index)] = line{Color: s.Color, Name: s.Text}
			}
			if letter*float64(len(s.Text)) > right-left-6 || step < 12 {
				s.Text = ""
			}
			b.States = append(b.States, s)
			at = end
		}
		x.Bands = append(x.Bands, b)
	}
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		x.Legend = append(x.Legend, seen[key])
	}
}

// graph draws lines. A line has a gap where a point is missing, as in Grafana.
func (x *box) graph(lines []named, w Window) {
	rows := x.legend(lines)
	x.PlotWidth, x.PlotHeight = x.Width-left-3*gap, x.Height-header-gap-axis-rows*legendRow
	x.Low = x.PlotHeight + axis - 4
	low, high := math.Inf(1), math.Inf(-1)
	for _, l := range lines {
		for _, p := range l.Points {
			if p.finite() {
				low, high = min(low, p.Value), max(high, p.Value)
			}
		}
	}
	if m := x.FieldConfig.Defaults.Min; m != nil {
		low = *m
	}
	values, labels := ticks(x.FieldConfig.Defaults.Unit, low, high)
	bottom, top := values[0], values[len(values)-1]
	from, to := float64(w.From.UnixMilli())/1000, float64(w.To.UnixMilli())/1000
	down := func(v float64) string { return pixels((top - v) / (top - bottom) * float64(x.PlotHeight)) }
	across := func(t float64) string { return pixels(left + (t-from)/(to-from)*float64(x.PlotWidth)) }
	for i, v := range values {
		x.Down = append(x.Down, tick{down(v), labels[i]})
	}
	for _, t := range x.FieldConfig.Defaults.Thresholds.Steps {
		if t.Value != nil && *t.Value > bottom && *t.Value <= top && x.FieldConfig.Defaults.Custom.ThresholdsStyle.Mode == "line" {
			x.Limits = append(x.Limits, line{Color: palette[t.Color], Name: down(*t.Value)})
		}
	}
	x.times(w)
	for i, l := range lines {
		drawn := line{Color: colors[i%len(colors)]}
		var run [][2]string
		end := func() {
			var path strings.Builder
			for _, at := range run {
				path.WriteString(at[0] + "," + at[1] + " ")
			}
			if len(run) == 1 {
				drawn.Dots = append(drawn.Dots, run[0])
			} else if len(run) > 1 {
				drawn.Paths = append(drawn.Paths, path.String())
			}
			run = nil
		}
		before := math.Inf(-1)
		for _, p := range l.Points {
			if !p.finite() || p.Time-before > 1.5*w.Step.Seconds() {
				end()
			}
			if p.finite() {
				run, before = append(run, [2]string{across(p.Time), down(p.Value)}), p.Time
			}
		}
		end()
		x.Lines = append(x.Lines, drawn)
	}
}

// times marks times below a graph or a timeline.
func (x *box) times(w Window) {
	from, to := float64(w.From.UnixMilli())/1000, float64(w.To.UnixMilli())/1000
	distance := w.To.Sub(w.From) / 6
	for _, d := range []time.Duration{time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour} {
		if distance <= d {
			distance = d
			break
		}
	}
	for t := w.From.Truncate(distance).Add(distance); t.Before(w.To); t = t.Add(distance) {
		x.Across = append(x.Across, tick{pixels(float64(x.PlotLeft) + (float64(t.Unix())-from)/(to-from)*float64(x.PlotWidth)), t.UTC().Format("15:04")})
	}
}

// legend fits entries into a few rows, and counts those for which there is no place. It returns the number of rows.
func (x *box) legend(lines []named) int {
	rows, used := 1, 0.0
	for i, l := range lines {
		size := mark + letter*float64(len(l.name))
		if used += size; used > float64(x.Width-2*gap) && i > 0 {
			rows, used = rows+1, size
		}
		if rows > legendRows {
			x.More = len(lines) - i
			return legendRows + 1
		}
		x.Legend = append(x.Legend, line{Color: colors[i%len(colors)], Name: l.name})
	}
	return rows
}

func pixels(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

var page = template.Must(template.New("").Parse(`<!DOCTYPE html>
<meta charset="utf-8">
<title>{{.Title}}</title>
<style>
body { margin: 0; background: #f4f5f5; color: #24292e; font: 11px "DejaVu Sans", sans-serif; }
h1 { position: absolute; left: 10px; top: 12px; margin: 0; font-size: 15px; }
p { position: absolute; right: 10px; top: 14px; margin: 0; }
section { position: absolute; box-sizing: border-box; overflow: hidden; background: #fff; border: 1px solid #dcdcdd; border-radius: 2px; }
h2 { overflow: hidden; height: 26px; margin: 0 8px; font-size: 12px; line-height: 26px; text-overflow: ellipsis; white-space: nowrap; }
h2 span { color: #888; font-weight: normal; }
.legend { padding: 0 8px; line-height: 17px; }
.legend span { margin-right: 12px; white-space: nowrap; }
.legend svg { margin-right: 4px; vertical-align: 3px; }
table { width: 100%; border-collapse: collapse; table-layout: fixed; font-size: 10px; }
th, td { overflow: hidden; padding: 4px 8px; border-top: 1px solid #eee; text-align: left; text-overflow: ellipsis; white-space: nowrap; }
th { color: #1f62e0; }
.number { text-align: center; font-size: 26px; font-weight: bold; line-height: 44px; }
.more { padding: 3px 8px; border-top: 1px solid #eee; color: #888; font-size: 10px; }
.none { text-align: center; line-height: 100px; color: #888; }
</style>
<h1>{{.Title}}</h1>
<p>{{range .Templating.List}}{{if eq .Type "query"}}{{.Name}}: {{.Current.Text}} · {{end}}{{end}}{{.From}} to {{.To}} UTC</p>
{{range .Boxes}}<section style="left: {{.Left}}px; top: {{.Top}}px; width: {{.Width}}px; height: {{.Height}}px">
<h2>{{.Title}}{{if not .Value}} <span>{{.Description}}</span>{{end}}</h2>
{{if .Empty}}<div class="none">{{or .FieldConfig.Defaults.NoValue "No data"}}</div>
{{else if .Value}}<div class="number" style="color: {{.Color}}">{{.Value}}</div>
<svg width="{{.PlotWidth}}" height="{{.PlotHeight}}" style="position: absolute; left: 0; bottom: 0"><polygon points="{{.Area}}" fill="{{.Color}}" opacity="0.18"/></svg>
{{else if .Bands}}{{$x := .}}<svg width="{{.Width}}" height="{{.Low}}" style="display: block; padding: 4px 0; overflow: visible" font-size="10" fill="#555">
{{range .Bands}}{{$b := .}}<text x="{{$x.PlotLeft}}" y="{{.Middle}}" dx="-6" dy="3" text-anchor="end">{{.Name}}</text>
{{range .States}}<rect x="{{.Left}}" y="{{$b.Top}}" width="{{.Width}}" height="{{$b.Height}}" fill="{{.Color}}"/>` +
	`<text x="{{.Left}}" y="{{$b.Middle}}" dx="4" dy="3" fill="#fff">{{.Text}}</text>
{{end}}{{end}}{{range .Across}}<text x="{{.At}}" y="{{$x.Low}}" text-anchor="middle">{{.Text}}</text>
{{end}}</svg>
<div class="legend">{{range .Legend}}<span><svg width="10" height="8"><rect width="10" height="8" fill="{{.Color}}"/></svg>{{.Name}}</span> {{end}}</div>
{{else if .Rows}}<table><tr>{{range .Columns}}<th{{with .Width}} style="width: {{.}}px"{{end}}>{{.Title}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range .}}<td{{with .Color}} style="color: {{.}}"{{end}}>{{.Text}}</td>{{end}}</tr>
{{end}}</table>{{with .More}}<div class="more">and {{.}} more</div>{{end}}
{{else}}{{$x := .}}<svg width="{{.Width}}" height="{{.Low}}" style="display: block; padding: 4px 0; overflow: visible" font-size="10" fill="#555">
{{range .Down}}<path d="M{{$x.PlotLeft}} {{.At}}h{{$x.PlotWidth}}" stroke="#e4e4e4"/>` +
	`<text x="{{$x.PlotLeft}}" y="{{.At}}" dx="-6" dy="3" text-anchor="end">{{.Text}}</text>
{{end}}{{range .Across}}<path d="M{{.At}} 0v{{$x.PlotHeight}}" stroke="#e4e4e4"/>` +
	`<text x="{{.At}}" y="{{$x.Low}}" text-anchor="middle">{{.Text}}</text>
{{end}}{{range .Limits}}<path d="M{{$x.PlotLeft}} {{.Name}}h{{$x.PlotWidth}}" stroke="{{.Color}}" stroke-dasharray="6 3"/>
{{end}}{{range .Lines}}{{$l := .}}{{range .Paths}}<polyline points="{{.}}" fill="none" stroke="{{$l.Color}}" stroke-width="1.3"/>
{{end}}{{range .Dots}}<circle cx="{{index . 0}}" cy="{{index . 1}}" r="2" fill="{{$l.Color}}"/>
{{end}}{{end}}</svg>
<div class="legend">{{range .Legend}}<span><svg width="10" height="3"><rect width="10" height="3" fill="{{.Color}}"/></svg>{{.Name}}</span> ` +
	`{{end}}{{if .More}}<br>and {{.More}} more{{end}}</div>
{{end}}</section>
{{end}}`))
