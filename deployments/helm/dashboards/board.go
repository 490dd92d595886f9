// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "regexp"

// dashboard is a Grafana dashboard. Its panels fill rows from left to right.
type dashboard struct {
	name, title string
	// variables are the names of labels to filter by, each with a query for its values. Each dashboard has the cluster too.
	variables []variable
	panels    []panel
}

type variable struct{ name, query string }

// kind is a type of Grafana's panels.
type kind string

const (
	graph    kind = "timeseries"
	table    kind = "table"
	number   kind = "stat"
	timeline kind = "state-timeline"
)

// panel shows queries: a graph by default, the newest value as a number, states over time, or a table of the newest values.
type panel struct {
	title, unit, description string
	kind                     kind
	// columns are the labels of a table and their titles, in order. The value has the name Value, and is hidden without a title.
	columns []column
	// cells are forms of columns, by name.
	cells map[string]cell
	// thresholds colour values, and a graph has a line at each of them. mappings are values in words.
	thresholds []threshold
	mappings   []mapping
	queries    []query
	// none is shown if there is no value.
	none string
}

type column struct{ name, title string }

// cell is the form of a column. Its words replace values. Without a width in pixels, the column has an equal part of what is left.
type cell struct {
	words []mapping
	width int
}

// threshold is the colour of values from a limit on.
type threshold struct {
	from  float64
	color string
}

// mapping is a value in words. The colour is optional in tables.
type mapping struct{ value, text, color string }

type query struct{ expr, legend string }

type object = map[string]any

// source is the variable by which users choose a data source.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// sizes are the widths and heights of panels, in Grafana's 24 columns.
var sizes = map[kind]struct{ width, height int }{number: {4, 4}, timeline: {24, 9}, graph: {12, 8}, table: {12, 8}}

// narrow is the number of columns of a table that fit half of the width. Others have the whole width, and tall rows of panels.
const narrow, tall = 4, 10

// names are metrics of the driver in a query, with the brace of their labels.
var names = regexp.MustCompile(`\b(?:gpu|nvidia)_dra_\w+(\{)?`)

// inCluster selects the series of the chosen clusters. A series without the label is in each choice of all.
func inCluster(expr string) string {
	return names.ReplaceAllStringFunc(expr, func(name string) string {
		if name[len(name)-1] == '{' {
			return name + `cluster=~"$cluster", `
		}
		return name + `{cluster=~"$cluster"}`
	})
}

func (d dashboard) grafana() object {
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range append([]variable{{"cluster", "label_values(gpu_dra_build_info, cluster)"}}, d.variables...) {
		list = append(list, object{
			"name": v.name, "type": "query", "datasource": source, "query": object{"query": v.query, "refId": v.name},
			"includeAll": true, "multi": true, "allValue": ".*", "refresh": 2, "sort": 1,
			"current": object{"text": "All", "value": "$__all"},
		})
	}
	var panels []object
	x, y, height := 0, 0, 0
	for i, p := range d.panels {
		size := sizes[p.form()]
		if len(p.columns) > narrow {
			size.width, size.height = 24, tall
		}
		if x+size.width > 24 || size.height != height && x > 0 {
			x, y = 0, y+height
		}
		height = size.height
		panels = append(panels, p.grafana(i, object{"h": size.height, "w": size.width, "x": x, "y": y}))
		x += size.width
	}
	return object{
		"uid": "gpu-dra-" + d.name, "title": d.title, "tags": []string{"gpu-dra-driver"}, "schemaVersion": 39,
		"editable": true, "refresh": "30s", "time": object{"from": "now-3h", "to": "now"},
		"links": []object{{
			"title": "GPUs", "type": "dashboards", "tags": []string{"gpu-dra-driver"}, "asDropdown": false, "includeVars": true, "keepTime": true,
			"targetBlank": false, "icon": "external link", "tooltip": "", "url": "",
		}},
		"templating": object{"list": list}, "panels": panels,
	}
}

func (p panel) form() kind {
	if p.kind == "" {
		return graph
	}
	return p.kind
}

func (p panel) grafana(i int, place object) object {
	defaults, overrides := object{"unit": p.unit}, []object{}
	out := object{
		"id": i + 1, "title": p.title, "type": p.form(), "datasource": source, "description": p.description,
		"gridPos": place,
	}
	if p.none != "" {
		defaults["noValue"] = p.none
	}
	if len(p.thresholds) > 0 {
		var steps []object
		for n, t := range p.thresholds {
			step := object{"color": t.color, "value": t.from}
			if n == 0 {
				step["value"] = nil // The colour of all lower values.
			}
			steps = append(steps, step)
		}
		defaults["thresholds"] = object{"mode": "absolute", "steps": steps}
	}
	if len(p.mappings) > 0 {
		defaults["mappings"] = words(p.mappings)
	}
	switch p.form() {
	case graph:
		defaults["min"] = 0
		if len(p.thresholds) > 0 {
			defaults["custom"] = object{"thresholdsStyle": object{"mode": "line"}}
		}
	case number:
		defaults["color"] = object{"mode": "thresholds"}
		out["options"] = object{
			"colorMode": "value", "graphMode": "area", "justifyMode": "center", "textMode": "value", "orientation": "auto",
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
		}
	case timeline:
		defaults["color"] = object{"mode": "thresholds"}
		defaults["custom"] = object{"lineWidth": 0, "fillOpacity": 80}
		out["options"] = object{
			"mergeValues": true, "showValue": "auto", "alignValue": "left", "rowHeight": 0.85,
			"legend":  object{"showLegend": true, "displayMode": "list", "placement": "bottom"},
			"tooltip": object{"mode": "single", "sort": "none"},
		}
	case table:
		hidden, order, titles := object{"Time": true, "Value": true}, object{}, object{}
		for n, c := range p.columns {
			order[c.name], titles[c.name] = n, c.title
			delete(hidden, c.name)
			if set := p.cells[c.name].properties(); len(set) > 0 {
				overrides = append(overrides, object{"matcher": object{"id": "byName", "options": c.title}, "properties": set})
			}
		}
		out["transformations"] = []object{{"id": "organize", "options": object{"excludeByName": hidden, "indexByName": order, "renameByName": titles}}}
	}
	var targets []object
	for n, q := range p.queries {
		target := object{
			"refId": string(rune('A' + n)), "datasource": source, "expr": inCluster(q.expr), "legendFormat": q.legend,
			"range": p.form() != table, "instant": p.form() == table,
		}
		if p.form() == table {
			target["format"] = "table"
		}
		targets = append(targets, target)
	}
	out["targets"], out["fieldConfig"] = targets, object{"defaults": defaults, "overrides": overrides}
	return out
}

// properties are overrides of a column.
func (c cell) properties() (out []object) {
	if c.width > 0 {
		out = append(out, object{"id": "custom.width", "value": c.width})
	}
	if len(c.words) > 0 {
		out = append(out, object{"id": "mappings", "value": words(c.words)})
		if c.words[0].color != "" {
			out = append(out, object{"id": "custom.cellOptions", "value": object{"type": "color-text"}})
		}
	}
	return out
}

func words(list []mapping) []object {
	options := object{}
	for n, m := range list {
		word := object{"text": m.text, "index": n}
		if m.color != "" {
			word["color"] = m.color
		}
		options[m.value] = word
	}
	return []object{{"type": "value", "options": options}}
}
