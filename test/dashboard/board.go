// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package dashboard draws the chart's Grafana dashboards from their JSON as HTML, for pictures of the documentation.
// Parse fails for each field, panel type and unit that Page cannot draw.
package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Board is a dashboard. It has all fields of the chart's dashboards, so that a new one fails until Page draws it.
type Board struct {
	Editable      bool
	Refresh       string
	SchemaVersion int
	Tags          []string
	Time          struct{ From, To string }
	Title, UID    string
	Templating    struct{ List []Variable }
	Panels        []Panel
}

// Variable is a data source, or the values of a label. All values are selected.
type Variable struct {
	Label, Name, Type, AllValue string
	Current                     struct{ Text, Value string }
	Datasource                  source
	IncludeAll, Multi           bool
	Query                       json.RawMessage
	Refresh, Sort               int
}

type source struct{ Type, UID string }

// Panel is a graph of ranges or a table of instant values.
type Panel struct {
	ID                       int
	Title, Description, Type string
	Datasource               source
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct {
		Defaults struct {
			Min  *float64
			Unit string
		}
		Overrides []struct{}
	}
	Targets         []Target
	Transformations []struct {
		ID      string
		Options struct{ ExcludeByName map[string]bool }
	}
}

// Target is a query of a panel.
type Target struct {
	Datasource                        source
	Expr, Format, LegendFormat, RefID string
	Instant, Range                    bool
}

// Parse reads the JSON of a dashboard.
func Parse(data []byte) (*Board, error) {
	b := &Board{}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(b); err != nil {
		return nil, err
	}
	for _, v := range b.Templating.List {
		if v.Type != "datasource" && v.Type != "query" || v.Type == "query" && v.Current.Value != "$__all" {
			return nil, fmt.Errorf("%s: variable %s: only data sources and queries for all values can be drawn", b.Title, v.Name)
		}
	}
	for _, p := range b.Panels {
		table := p.Type == "table"
		if p.Type != "timeseries" && !table {
			return nil, fmt.Errorf("%s: %s: panels of the type %s cannot be drawn", b.Title, p.Title, p.Type)
		}
		if len(units[p.FieldConfig.Defaults.Unit]) == 0 {
			return nil, fmt.Errorf("%s: %s: the unit %s cannot be drawn", b.Title, p.Title, p.FieldConfig.Defaults.Unit)
		}
		if table && len(p.Targets) != 1 {
			return nil, fmt.Errorf("%s: %s: tables of several queries cannot be drawn", b.Title, p.Title)
		}
		for _, t := range p.Targets {
			if t.Instant != table || t.Range == table || (t.Format == "table") != table {
				return nil, fmt.Errorf("%s: %s: graphs need ranges, and tables need instant values in the format table", b.Title, p.Title)
			}
		}
		for _, t := range p.Transformations {
			if t.ID != "organize" || !table {
				return nil, fmt.Errorf("%s: %s: the transformation %s cannot be drawn", b.Title, p.Title, t.ID)
			}
		}
	}
	return b, nil
}

// Values returns the metric and the label whose values a variable of the type query has.
func (v Variable) Values() (metric, label string, err error) {
	var q struct{ Query, RefID string }
	if err := json.Unmarshal(v.Query, &q); err != nil {
		return "", "", err
	}
	inner, ok := strings.CutPrefix(q.Query, "label_values(")
	metric, label, found := strings.Cut(strings.TrimSuffix(inner, ")"), ", ")
	if !ok || !found {
		return "", "", fmt.Errorf("variable %s: the query %q is not label_values(METRIC, LABEL)", v.Name, q.Query)
	}
	return metric, label, nil
}

// Resolve returns the query of a target with all values of each variable.
func (b *Board) Resolve(t Target, rateInterval, timeRange string) string {
	pairs := []string{"$__rate_interval", rateInterval, "$__range", timeRange}
	for _, v := range b.Templating.List {
		if v.Type == "query" {
			pairs = append(pairs, "$"+v.Name, v.AllValue)
		}
	}
	return strings.NewReplacer(pairs...).Replace(t.Expr)
}

var placeholders = regexp.MustCompile(`{{\s*(\w+)\s*}}`)

func (t Target) legend(labels map[string]string) string {
	return placeholders.ReplaceAllStringFunc(t.LegendFormat, func(s string) string {
		return labels[placeholders.FindStringSubmatch(s)[1]]
	})
}

// columns returns the labels that a table shows, in Grafana's order.
func (p Panel) columns(rows []named) (out []string) {
	for _, r := range rows {
		for label := range r.Labels {
			if !p.excludes(label) && !slices.Contains(out, label) {
				out = append(out, label)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (p Panel) excludes(label string) bool {
	for _, t := range p.Transformations {
		if t.Options.ExcludeByName[label] {
			return true
		}
	}
	return false
}
