// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package dashboard draws the chart's Grafana dashboards from their JSON as HTML, for pictures of the documentation.
// Parse fails for each field, panel type and unit that Page cannot draw.
package dashboard

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
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
	Links         []link
	Panels        []Panel
}

// link leads to other dashboards. A picture has none.
type link struct {
	Title, Type, Icon, Tooltip, URL                string
	Tags                                           []string
	AsDropdown, IncludeVars, KeepTime, TargetBlank bool
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

// Panel is a graph of ranges, the newest value as a number, states over time, or a table of instant values.
type Panel struct {
	ID                       int
	Title, Description, Type string
	Datasource               source
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct {
		Defaults  defaults
		Overrides []override
	}
	Options         options
	Targets         []Target
	Transformations []struct {
		ID      string
		Options struct {
			ExcludeByName map[string]bool
			IndexByName   map[string]int
			RenameByName  map[string]string
		}
	}
}

// defaults are the unit of a panel's values, and their colours and words.
type defaults struct {
	Min           *float64
	Unit, NoValue string
	Thresholds    struct {
		Mode  string
		Steps []struct {
			Color string
			Value *float64
		}
	}
	Mappings []wording
	Color    struct{ Mode string }
	Custom   struct {
		ThresholdsStyle        struct{ Mode string }
		LineWidth, FillOpacity int
	}
}

// wording has values in words.
type wording struct {
	Type    string
	Options map[string]word
}

// override changes the column of a table with a title: its width in pixels, values in words, and whether their colours are the text's.
type override struct {
	Matcher    struct{ ID, Options string }
	Properties []struct {
		ID    string
		Value json.RawMessage
	}
	width int
	words []wording
}

// read decodes the properties.
func (o *override) read() error {
	if o.Matcher.ID != "byName" {
		return fmt.Errorf("overrides by %s cannot be drawn", o.Matcher.ID)
	}
	for _, p := range o.Properties {
		var err error
		switch p.ID {
		case "custom.width":
			err = json.Unmarshal(p.Value, &o.width)
		case "mappings":
			if err = json.Unmarshal(p.Value, &o.words); err == nil {
				err = drawable(o.words, true)
			}
		case "custom.cellOptions":
			var options struct{ Type string }
			if err = json.Unmarshal(p.Value, &options); err == nil && options.Type != "color-text" {
				err = fmt.Errorf("cells of the type %s cannot be drawn", options.Type)
			}
		default:
			err = fmt.Errorf("the property %s cannot be drawn", p.ID)
		}
		if err != nil {
			return fmt.Errorf("column %s: %w", o.Matcher.Options, err)
		}
	}
	return nil
}

// column returns the override of the column with a title.
func (p Panel) column(title string) override {
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.Options == title {
			return o
		}
	}
	return override{}
}

// word is a value in words.
type word struct {
	Text, Color string
	Index       int
}

// options belong to numbers and timelines. Page draws all of them in one way.
type options struct {
	ColorMode, GraphMode, JustifyMode, TextMode, Orientation string
	ReduceOptions                                            struct {
		Calcs  []string
		Fields string
		Values bool
	}
	MergeValues           bool
	ShowValue, AlignValue string
	RowHeight             float64
	Legend                struct {
		ShowLegend             bool
		DisplayMode, Placement string
	}
	Tooltip struct{ Mode, Sort string }
}

// The types of panels.
const (
	graph    = "timeseries"
	table    = "table"
	number   = "stat"
	timeline = "state-timeline"
)

// colour returns the colour of a value: that of the last threshold that it reaches.
func (d defaults) colour(value float64) string {
	out := "text"
	for _, s := range d.Thresholds.Steps {
		if s.Value == nil || value >= *s.Value {
			out = s.Color
		}
	}
	return palette[out]
}

// word returns a value in words. ok is false if it has none.
func (d defaults) word(value float64) (w word, ok bool) {
	return inWords(d.Mappings, strconv.FormatFloat(value, 'f', -1, 64))
}

func inWords(list []wording, value string) (w word, ok bool) {
	for _, m := range list {
		if w, ok = m.Options[value]; ok {
			return w, true
		}
	}
	return word{}, false
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
	for i := range b.Panels {
		p := &b.Panels[i]
		table := p.Type == table
		for n := range p.FieldConfig.Overrides {
			if !table {
				return nil, fmt.Errorf("%s: %s: only columns of tables can have overrides", b.Title, p.Title)
			}
			if err := p.FieldConfig.Overrides[n].read(); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", b.Title, p.Title, err)
			}
		}
		if !slices.Contains([]string{graph, number, timeline}, p.Type) && !table {
			return nil, fmt.Errorf("%s: %s: panels of the type %s cannot be drawn", b.Title, p.Title, p.Type)
		}
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", b.Title, p.Title, err)
		}
		if len(units[p.FieldConfig.Defaults.Unit]) == 0 {
			return nil, fmt.Errorf("%s: %s: the unit %s cannot be drawn", b.Title, p.Title, p.FieldConfig.Defaults.Unit)
		}
		if p.Type != graph && len(p.Targets) != 1 {
			return nil, fmt.Errorf("%s: %s: only graphs of several queries can be drawn", b.Title, p.Title)
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

// check finds colours, words and options that Page does not draw.
func (p Panel) check() error {
	d := p.FieldConfig.Defaults
	for i, s := range d.Thresholds.Steps {
		if palette[s.Color] == "" {
			return fmt.Errorf("the colour %s cannot be drawn", s.Color)
		}
		if (s.Value == nil) != (i == 0) || i > 1 && *s.Value <= *d.Thresholds.Steps[i-1].Value {
			return errors.New("the first threshold needs no value, the others ascending ones")
		}
	}
	if len(d.Thresholds.Steps) > 0 && d.Thresholds.Mode != "absolute" {
		return fmt.Errorf("thresholds of the mode %s cannot be drawn", d.Thresholds.Mode)
	}
	if err := drawable(d.Mappings, false); err != nil {
		return err
	}
	o := p.Options
	switch p.Type {
	case number:
		if len(d.Thresholds.Steps) == 0 || o.ColorMode != "value" || o.GraphMode != "area" || !slices.Equal(o.ReduceOptions.Calcs, []string{"lastNotNull"}) {
			return errors.New("a number needs thresholds, the colour of its value, an area and the last value")
		}
	case timeline:
		if len(d.Mappings) == 0 || !o.MergeValues || !o.Legend.ShowLegend {
			return errors.New("a timeline needs mappings, merged values and a legend")
		}
	}
	return nil
}

// drawable finds words that Page does not draw. Words of a table need no colour.
func drawable(list []wording, colourless bool) error {
	for _, m := range list {
		for value, w := range m.Options {
			if palette[w.Color] == "" && !(colourless && w.Color == "") || m.Type != "value" {
				return fmt.Errorf("the mapping of %s to the colour %s cannot be drawn", value, w.Color)
			}
		}
	}
	return nil
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

// columns returns the labels that a table shows, in the order of its transformation and then in Grafana's.
func (p Panel) columns(rows []named) (out []string) {
	for _, r := range rows {
		for label := range r.Labels {
			if !p.excludes(label) && !slices.Contains(out, label) {
				out = append(out, label)
			}
		}
	}
	if !p.excludes(value) {
		out = append(out, value)
	}
	place := func(label string) int {
		for _, t := range p.Transformations {
			if n, ok := t.Options.IndexByName[label]; ok {
				return n
			}
		}
		return math.MaxInt
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b)) })
	return out
}

// title returns the head of a column.
func (p Panel) title(label string) string {
	for _, t := range p.Transformations {
		if name, ok := t.Options.RenameByName[label]; ok {
			return name
		}
	}
	return label
}

func (p Panel) excludes(label string) bool {
	for _, t := range p.Transformations {
		if t.Options.ExcludeByName[label] {
			return true
		}
	}
	return false
}
