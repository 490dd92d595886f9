// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

// dashboard is a Grafana dashboard of two columns.
type dashboard struct {
	name, title string
	// variables are the names of labels to filter by, each with a query for its values.
	variables []variable
	panels    []panel
}

type variable struct{ name, query string }

// panel is a graph, or a table of the newest values. With labelsOnly the table has no values.
type panel struct {
	title, unit, description string
	table, labelsOnly        bool
	queries                  []query
}

type query struct{ expr, legend string }

type object = map[string]any

// source is the variable by which users choose a data source.
var source = object{"type": "prometheus", "uid": "${datasource}"}

const panelHeight, panelWidth = 8, 12

func (d dashboard) grafana() object {
	list := []object{{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}}
	for _, v := range d.variables {
		list = append(list, object{
			"name": v.name, "type": "query", "datasource": source, "query": object{"query": v.query, "refId": v.name},
			"includeAll": true, "multi": true, "allValue": ".*", "refresh": 2, "sort": 1,
			"current": object{"text": "All", "value": "$__all"},
		})
	}
	var panels []object
	for i, p := range d.panels {
		panels = append(panels, p.grafana(i))
	}
	return object{
		"uid": "gpu-dra-" + d.name, "title": d.title, "tags": []string{"gpu-dra-driver"}, "schemaVersion": 39,
		"editable": true, "refresh": "30s", "time": object{"from": "now-3h", "to": "now"},
		"templating": object{"list": list}, "panels": panels,
	}
}

func (p panel) grafana(i int) object {
	out := object{
		"id": i + 1, "title": p.title, "type": "timeseries", "datasource": source, "description": p.description,
		"gridPos":     object{"h": panelHeight, "w": panelWidth, "x": i % 2 * panelWidth, "y": i / 2 * panelHeight},
		"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []any{}},
	}
	if p.table {
		out["type"] = "table"
		hidden := object{"Time": true, "__name__": true, "instance": true, "job": true, "endpoint": true, "namespace": true}
		if p.labelsOnly {
			hidden["Value"] = true
		}
		out["transformations"] = []object{{"id": "organize", "options": object{"excludeByName": hidden}}}
	}
	var targets []object
	for n, q := range p.queries {
		target := object{"refId": string(rune('A' + n)), "datasource": source, "expr": q.expr, "legendFormat": q.legend, "range": !p.table, "instant": p.table}
		if p.table {
			target["format"] = "table"
		}
		targets = append(targets, target)
	}
	out["targets"] = targets
	return out
}
